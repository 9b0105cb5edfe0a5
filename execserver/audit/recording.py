"""The recording of one process: a header and its chunks as they came, in a file of the audit folder.

A recording is raw bytes with a head each, since a terminal's output need not be UTF-8 and the work of a
format for players is for who asks for it (`cast`).  The death of the server cuts at most the last chunk.
"""

from __future__ import annotations

import errno
import json
import os
import re
import struct

from execserver.audit.chain import bounded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = "recordings"
RECORDING_BYTES = 64 * 1024 * 1024  # of one process; what comes then is not recorded, and that is
KEPT = 256  # recordings; the oldest goes for a further one

OUTPUT, INPUT, RESIZE, CUT, EXIT = b"o", b"i", b"r", b"c", b"x"
_CODES = (OUTPUT, INPUT, RESIZE, CUT, EXIT)
_HEAD = struct.Struct("<QcI")  # microseconds since the start, code, bytes
_MAX_HEADER = 1024 * 1024
_SHOWN_WORDS, _SHOWN_TEXT = 200, 400  # of the words of a process in the header, which is to stay readable
_NAME = re.compile(r"\d{13}-[0-9a-f]{8}\.rec")
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class NoRecording(Exception):
    """There is no such recording, or it is none; the text says which."""


class Recording:
    """Writes the chunks of one process; owns a descriptor until `close`.

    What the disk does not take is left out, as what comes above the limit is, and that is recorded when it
    can be.
    """

    def __init__(
        self, folder: str, at_ms: int, facts: dict[str, object], limit: int = RECORDING_BYTES
    ) -> None:
        """Begin the file of a process that started at a time (Unix milliseconds).  Raises OSError."""
        self.name = f"{at_ms:013}-{os.urandom(4).hex()}"
        place = os.path.join(folder, FOLDER)
        os.makedirs(place, 0o700, exist_ok=True)
        _make_room(place)
        self._at_us = at_ms * 1000
        self._size = 0
        self._limit = limit
        self._is_cut = False
        self._path = f"{place}/{self.name}.rec"
        self._fd = os.open(self._path, _FLAGS, 0o600)
        if not self._write(json.dumps(bounded(facts, _SHOWN_TEXT, _SHOWN_WORDS)).encode() + b"\n"):
            # Without a header nobody could read it.
            self.discard()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @classmethod
    def taken_over(cls, fd: int, path: str, at_us: int, size: int, is_cut: bool) -> Recording:
        """Return what goes on with a recording that another program has begun."""
        recording = cls.__new__(cls)
        recording.name = os.path.basename(path).removesuffix(".rec")
        recording._path, recording._fd, recording._at_us = path, fd, at_us
        recording._size, recording._is_cut, recording._limit = size, is_cut, RECORDING_BYTES
        return recording

    @property
    def facts(self) -> tuple[int, str, int, int, bool] | None:
        """What `taken_over` takes; None once it is closed."""
        return None if self._fd < 0 else (self._fd, self._path, self._at_us, self._size, self._is_cut)

    def add(self, code: bytes, data: bytes, at_us: int) -> None:
        """Record a chunk at a time (Unix microseconds)."""
        if self._fd < 0:
            return
        head = _HEAD.pack(max(0, at_us - self._at_us), code, len(data))
        fits = code == EXIT or self._size + len(head) + len(data) <= self._limit
        if fits and self._write(head + data):
            self._is_cut = False
        elif not self._is_cut:
            # Room for this is left above the limit; on a full disk the next chunk tries again.
            self._is_cut = self._write(_HEAD.pack(max(0, at_us - self._at_us), CUT, 0))

    def discard(self) -> None:
        """Remove the recording of a process that was not started."""
        self.close()
        os.unlink(self._path)

    def close(self) -> None:
        """End the recording; later chunks are dropped."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _write(self, data: bytes) -> bool:
        """Write all or nothing."""
        written = 0
        try:
            written = os.write(self._fd, data)
        except OSError:
            pass
        if written == len(data):
            self._size += written
            return True
        if written:
            os.ftruncate(self._fd, self._size)
            os.lseek(self._fd, self._size, os.SEEK_SET)
        return False


def read(folder: str, name: str) -> tuple[dict[str, object], Iterator[tuple[int, bytes, bytes]]]:
    """Return the header of a recording, and its chunks: microseconds, code, bytes.

    `name` is the recording's, or the id of a process, whose newest recording counts.  A chunk that is cut
    ends it.  Raises NoRecording.
    """
    place = os.path.join(folder, FOLDER)
    for known in reversed(names(place)):
        with open(f"{place}/{known}.rec", "rb") as file:
            facts = _header(file.readline(_MAX_HEADER))
            if name in (known, facts.get("process")):
                return facts, _chunks(file.read())
    raise NoRecording(f"{folder} has no recording {name}")


def names(place: str) -> list[str]:
    """Return the names of the recordings in a folder, the oldest first."""
    try:
        found = os.listdir(place)
    except FileNotFoundError:
        return []
    return sorted(name.removesuffix(".rec") for name in found if _NAME.fullmatch(name))


def _header(line: bytes) -> dict[str, object]:
    try:
        facts = json.loads(line)
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def _chunks(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    at = 0
    while at + _HEAD.size <= len(data):
        moment, code, size = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        if code not in _CODES or at + size > len(data):
            return
        yield moment, code, data[at : at + size]
        at += size


def _make_room(place: str) -> None:
    """Remove the oldest recordings, so that there is a place for one more."""
    known = names(place)
    for name in known[: max(0, len(known) + 1 - KEPT)]:
        os.unlink(f"{place}/{name}.rec")
