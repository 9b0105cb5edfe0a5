"""Carries the state over an exec: in a sealed memory file, and with it the descriptors that are named there.

All descriptors of a server are closed by an exec.  Those that `Outgoing.keep` was told of are not; the new
program closes them for its own children before it does anything else.  Who takes over a descriptor with
`Incoming.take` owns it; what nobody took is closed at the end.

Beside the records lies what processes have put out: up to a MiB of each, which the records would have copied
three times more.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import MutableMapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from execserver.runtime_paths import STATE_VARIABLE

if TYPE_CHECKING:
    from execserver.handover.records import Handover
    from execserver.handover.relay_records import RelayHandover

_SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_MAGIC: Final = b"execserver state"
# Magic, version, soft limit of open files, number of descriptors, bytes of the records.
_HEAD: Final = struct.Struct("<16sQQQQ")
_MOST_PIECES: Final = 1024  # that the kernel takes at once

T = TypeVar("T")


class HandoverError(Exception):
    """The state cannot be taken over; the text says why."""


class Outgoing:
    """The descriptors that go along; their owners keep them, for the exec may fail."""

    def __init__(self) -> None:
        self._kept: list[int] = []
        self._beside: list[bytes] = []
        self._size_beside = 0
        self._file = -1

    def make_room(self, size: int) -> None:
        """Find memory for so many bytes beforehand, if there is any; `close` or `sealed` comes behind.

        For much output that is half of the time of writing it, and may be done in another thread.
        """
        self._file = _memory_file()
        try:
            os.posix_fallocate(self._file, 0, size)
        except OSError:
            self.close()  # `sealed` says so, unless less will do

    def close(self) -> None:
        """Give up the room that was made."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def keep(self, fd: int) -> int:
        """Have a descriptor go along; return its number, which stays the same."""
        self._kept.append(fd)
        return fd

    def put(self, pieces: Sequence[bytes]) -> int:
        """Have bytes go along in one piece beside the records; return their place in `Incoming.beside`."""
        at = self._size_beside
        self._beside += pieces
        self._size_beside += sum(map(len, pieces))
        return at

    def sealed(self, state: Handover | RelayHandover, soft_nofile: int) -> int:
        """Return a new descriptor of the state and of what goes along; raise OSError."""
        import msgspec  # late: only one of both ends needs it at once

        fd, self._file = self._file if self._file >= 0 else _memory_file(), -1
        try:
            records = msgspec.msgpack.encode(state)
            head = _HEAD.pack(_MAGIC, state.version, soft_nofile, len(self._kept), len(records))
            numbers = struct.pack(f"<{len(self._kept)}Q", *self._kept)
            os.truncate(fd, _write_all(fd, [head, numbers, records, *self._beside]))
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def set_inheritable(self, value: bool) -> None:
        """Let an exec leave the descriptors open, or close them."""
        for fd in self._kept:
            os.set_inheritable(fd, value)


class Incoming:
    """The state and the descriptors that came along; no child inherits these from now on."""

    def __init__(self, fd: int) -> None:
        """Take over a descriptor of `Outgoing.sealed`.  Raises HandoverError for anything else."""
        data = _sealed_content(fd)
        if len(data) < _HEAD.size:
            raise HandoverError("the memory file is no state of a server")
        magic, self._version, self.soft_nofile, number, size = _HEAD.unpack_from(data)
        begin = _HEAD.size + 8 * number
        if magic != _MAGIC or begin + size > len(data):
            raise HandoverError("the memory file is no state of a server")
        self._left = set(struct.unpack_from(f"<{number}Q", data, _HEAD.size))
        for each in self._left:
            os.set_inheritable(each, False)
        self._records = data[begin : begin + size]
        self.beside = data[begin + size :]

    def state(self) -> Handover:
        """Return what was packed.  Raises HandoverError for a state that this program cannot read."""
        from execserver.handover.records import STATE_VERSION, Handover

        return self._decoded(Handover, STATE_VERSION)

    def relay_state(self) -> RelayHandover:
        """Return what a relay has packed.  Raises HandoverError for anything else."""
        from execserver.handover.relay_records import RELAY_STATE_VERSION, RelayHandover

        return self._decoded(RelayHandover, RELAY_STATE_VERSION)

    def _decoded(self, kind: type[T], version: int) -> T:
        import msgspec

        if self._version != version:
            raise HandoverError(f"the state has version {self._version}, this program reads {version}")
        records, self._records = self._records, memoryview(b"")
        try:
            return msgspec.msgpack.decode(records, type=kind)
        except msgspec.DecodeError as error:
            raise HandoverError(f"the state cannot be read: {error}") from None

    def take(self, fd: int) -> int:
        """Take over a descriptor that came along; return it."""
        self._left.remove(fd)
        return fd

    def close_rest(self) -> int:
        """Close what nobody has taken; return how many descriptors that were.  Lets go of `beside`."""
        self.beside = memoryview(b"")
        left, self._left = self._left, set()
        for fd in left:
            os.close(fd)
        return len(left)


def received(environ: MutableMapping[str, str]) -> Incoming | None:
    """Return what a server before this program has handed over, as a variable says; None if there was none.

    The variable is taken away.  Raises HandoverError.
    """
    number = environ.pop(STATE_VARIABLE, None)
    if number is None:
        return None
    if not (number.isascii() and number.isdigit()):
        raise HandoverError(f"{STATE_VARIABLE} is no descriptor")
    return Incoming(int(number))


def _sealed_content(fd: int) -> memoryview:
    """Return what is in a sealed memory file, and close it."""
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        size = os.fstat(fd).st_size
    except OSError:
        raise HandoverError("the descriptor is no memory file") from None
    if seals & _SEALS != _SEALS:
        raise HandoverError("the memory file is not sealed")
    try:
        # Not read: a copy of all output that is retained would take as long as making it.
        return memoryview(mmap.mmap(fd, size, mmap.MAP_PRIVATE, mmap.PROT_READ))
    except (OSError, ValueError):
        raise HandoverError("the memory file cannot be mapped") from None
    finally:
        os.close(fd)


def _memory_file() -> int:
    return os.memfd_create("execserver-state", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def _write_all(fd: int, pieces: list[bytes]) -> int:
    """Write to a new file; return how many bytes that were."""
    size = 0
    for first in range(0, len(pieces), _MOST_PIECES):
        some = pieces[first : first + _MOST_PIECES]
        left = sum(map(len, some))
        size += left
        left -= os.writev(fd, some)
        if left:  # rare: the kernel takes 2 GiB at most
            view = memoryview(b"".join(some))[-left:]
            while view:
                view = view[os.write(fd, view) :]
    return size
