"""What happens to one process, written down before anybody hears of it.

Its output goes from the pipe into a memory file within the kernel (`splice`), which moves the file's position
by what it has moved.  So a kill leaves each byte in the pipe or in the file, and how many are in the file is
known, whatever of it was noted.  A terminal cannot do that: its output goes through a pipe in between.  Input
goes the other way: into a memory file, noted with its write id, and from there to the process, which moves
that file's position (`sendfile`).

The events are records in a journal that begins with a snapshot of the process.  When output or records have
grown enough, both files are written anew.  Standard library only.
"""

from __future__ import annotations

import os
import struct

from execserver.survival.journal import Journal, memory_file
from execserver.survival.ledger import PROCESS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.survival.keeping import Keeping

(
    SNAPSHOT,  # of everything, as `survival.recovery` reads it
    STREAM,  # whose output the bytes of the data file are from now on
    OUTPUT,  # a chunk of it was numbered
    INPUT,  # bytes were accepted, with this write id or none
    INPUT_CLEARED,  # the input file, of which all was passed on, is empty
    INPUT_ENDED,  # nothing more is accepted
    INPUT_GONE,  # nothing more can be written
    OUTPUT_GONE,  # an output has ended
    TERMINATED,  # its client has ended it
    SENT,  # a signal of a client
    ENDED,  # the zygote has reaped it
    EXITED,  # its exit was numbered
    CLOSED,  # its end was numbered
) = range(1, 14)

CHUNK = struct.Struct("<IQ")  # bytes, Unix milliseconds
SIZE = struct.Struct("<I")
END = struct.Struct("<iBQQ")  # wait status, whether others of its group are left, CPU us, peak bytes
EXIT = struct.Struct("<iB")  # exit code, whether the sandbox has denied something; then the text of the end
PLACES = struct.Struct("<5Q")  # keys: records, data, input, both ends of the pipe in between (0: none)

_GROWN_BYTES = 1024 * 1024  # beyond what a snapshot has, until files are written anew
_TERMINAL_BYTES = 4096  # that a terminal returns at once


class Out:
    """Takes what `pack` puts beside the records, and names descriptors by their keys."""

    def __init__(self, data: int, keys: dict[int, int]) -> None:
        self._data = data
        self._keys = keys
        self.size = 0

    def keep(self, fd: int) -> int:
        """Return the key of a descriptor."""
        return self._keys[fd]

    def put(self, pieces: Sequence[bytes]) -> int:
        """Write bytes in one piece; return their place.  Raises OSError."""
        at = self.size
        for piece in pieces:
            view = memoryview(piece)
            while view:
                written = os.write(self._data, view)
                view = view[written:]
                self.size += written
        return at


class ProcessJournal:
    """The memory files of one process, and the keys of all that a keeper holds for it.

    Nothing is written, and nothing is held, before `begin`.
    """

    def __init__(
        self, keeping: Keeping, *, is_terminal: bool, input_file: int = -1, input_end: int = 0
    ) -> None:
        """`input_file` is one of a server before this, of which so much was accepted.  Raises OSError."""
        self._keeping = keeping
        self._is_terminal = is_terminal
        self._files: list[int] = []
        self._records = Journal()
        try:
            self.input_file = self._added(memory_file() if input_file < 0 else input_file)
            self._between = (-1, -1)
            if is_terminal:
                reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
                self._between = self._added(reader), self._added(writer)
            self._data = memory_file()
        except OSError:
            self._records.close()
            self._close_files()
            raise
        self._is_begun = False
        self.input_end = input_end
        self._data_end = 0
        self._grown_at = _GROWN_BYTES
        self._stream = ""
        self._keys: dict[int, int] = {}
        self._name = b""
        self._owner = b""
        self._snapshot: Callable[[Out], bytes] = lambda out: b""

    def begin(self, owner: bytes, fds: Sequence[int], snapshot: Callable[[Out], bytes]) -> None:
        """Have everything held and begin to write; `owner` is the id of the session.

        `fds` are those of the process.  `snapshot` returns what `recovery` reads.
        """
        self._owner, self._snapshot = owner, snapshot
        held = list(dict.fromkeys([*fds, *self._files]))
        self._keys = dict(zip(held, self._keeping.hold(held), strict=True))
        self._name = PROCESS + b"%d" % self._keys[self.input_file]
        self._is_begun = True
        self._publish(self._records, self._data)

    def read(self, stream: str, fd: int, most: int) -> bytes | None:
        """Read as an output pump does; what is returned was noted, and must be numbered at once."""
        self._renew_at_need()
        if stream != self._stream:
            self.note(STREAM, stream.encode())
            self._stream = stream
        try:
            size = self._from_terminal(fd, most) if self._is_terminal else _spliced(fd, self._data, most)
        except BlockingIOError:
            return None
        if not size:
            return b""
        data = os.pread(self._data, size, self._data_end)
        self._data_end += size
        return data

    def _from_terminal(self, fd: int, most: int) -> int:
        reader, writer = self._between
        size = 0
        while size < most:
            try:
                moved = _spliced(fd, writer, min(_TERMINAL_BYTES, most - size))
            except BlockingIOError:
                if not size:
                    raise
                break
            if not moved:
                break  # the next read finds the end again
            while moved:
                some = os.splice(reader, self._data, moved)
                moved -= some
                size += some
        return size

    def numbered(self, size: int, at_ms: int) -> None:
        """Note that the bytes read last have become a chunk."""
        self.note(OUTPUT, CHUNK.pack(size, at_ms))

    def accept(self, data: bytes, write_id: str) -> None:
        """Take input, once for each write id.  Raises OSError; nothing was accepted then."""
        self._renew_at_need()
        if os.pwrite(self.input_file, data, self.input_end) != len(data):
            raise OSError("the input was not stored")
        self.note(INPUT, SIZE.pack(len(data)) + write_id.encode())
        self.input_end += len(data)

    def clear_input(self) -> None:
        """Empty the input file, all of which was passed on."""
        # In this order: a file without a byte has nothing to pass on, wherever its position is.
        os.ftruncate(self.input_file, 0)
        os.lseek(self.input_file, 0, os.SEEK_SET)
        self.note(INPUT_CLEARED)
        self.input_end = 0

    def note(self, kind: int, payload: bytes = b"") -> None:
        """Write one record."""
        if self._is_begun:
            self._records.append(kind, payload)

    def let_go(self, fd: int) -> None:
        """Have the keeper close a descriptor of the process, which the caller closes as well."""
        key = self._keys.pop(fd, None)
        if key is not None:
            self._keeping.drop([key])

    def forget(self) -> None:
        """Drop everything: nobody can ask for the process any more."""
        self._keeping.ledger.drop(self._name)
        self._keeping.drop(list(self._keys.values()))
        self._keys.clear()
        self._is_begun = False
        self._records.close()
        os.close(self._data)
        self._close_files()

    def _renew_at_need(self) -> None:
        if max(self._data_end, self._records.size) > self._grown_at:
            self._renew()

    def _renew(self) -> None:
        """Write both files anew; who reads has the old ones or the new ones."""
        try:
            records = Journal()
            try:
                data = memory_file()
            except OSError:
                records.close()
                raise
        except OSError:  # no descriptor is free
            self._grown_at += _GROWN_BYTES
            return
        old = self._records.fd, self._data
        keys = [self._keys.pop(fd) for fd in old]
        self._publish(records, data)
        self._keeping.drop(keys)
        for fd in old:
            os.close(fd)

    def _publish(self, records: Journal, data: int) -> None:
        """Write a snapshot into two empty files, and let these be what counts."""
        out = Out(data, self._keys)
        records.append(SNAPSHOT, self._snapshot(out))
        new = self._keeping.hold([records.fd, data])
        places = [*new, *[self._keys.get(fd, 0) for fd in (self.input_file, *self._between)]]
        self._keeping.ledger.put(self._name, PLACES.pack(*places) + self._owner)
        self._records, self._data = records, data
        self._keys.update(zip((records.fd, data), new, strict=True))
        self._data_end, self._stream = out.size, ""
        self._grown_at = max(out.size, records.size) + _GROWN_BYTES

    def _added(self, fd: int) -> int:
        self._files.append(fd)
        return fd

    def _close_files(self) -> None:
        files, self._files = self._files, []
        for fd in files:
            os.close(fd)


def _spliced(source: int, target: int, most: int) -> int:
    """Move bytes within the kernel; return how many, 0 at the end.  Raises BlockingIOError."""
    try:
        return os.splice(source, target, most, flags=os.SPLICE_F_NONBLOCK)
    except BlockingIOError:
        raise
    except OSError:
        return 0  # a terminal that no process has open any more answers EIO
