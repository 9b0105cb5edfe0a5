"""The files of an audit log: `audit-00000001.jsonl` and so on, the newest one being written.

The folder belongs to one user, mode 0700, and to one process that writes.  At `SEGMENT_BYTES` a new file
begins, and beyond `SEGMENTS` the oldest goes: what is to be kept longer has to be copied before.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import time

from execserver.audit.chain import GENESIS, MAX_LINE_BYTES, Broken, digest_of, record_of

SEGMENT_BYTES = 64 * 1024 * 1024
SEGMENTS = 8
_NAME = re.compile(r"audit-(\d{8})\.jsonl")
_LOCK = "lock"
_LOCK_S = 2.0  # how long a server that starts waits for it,
_LOOK_S = 0.02  # looking that often
_TAIL_BYTES = 2 * MAX_LINE_BYTES + 1  # a torn line, and the whole one before it


class AuditFolderError(Exception):
    """The folder cannot hold an audit log; the text says why, and the cure."""


class End:
    """Where a log ends: the newest record's number and digest, and what was cut off behind it."""

    __slots__ = ("cut", "head", "number")

    def __init__(self, number: int = 0, head: str = GENESIS, cut: int = 0) -> None:
        self.number = number
        self.head = head
        self.cut = cut


def segment_names(folder: str) -> list[str]:
    """Return the names of the files, the oldest first.  Raises OSError."""
    return sorted(name for name in os.listdir(folder) if _NAME.fullmatch(name))


class Segments:
    """Appends lines to the newest file; owns its descriptor and the lock of the folder."""

    def __init__(self, folder: str, segment_bytes: int = SEGMENT_BYTES, segments: int = SEGMENTS) -> None:
        """Open the log, made if missing, and cut a torn line off its end.  Raises AuditFolderError."""
        self.folder = folder
        self._segment_bytes = segment_bytes
        self._segments = segments
        self._fd = -1
        self._size = 0
        self.end = End()
        try:
            if not os.path.lexists(folder):
                os.makedirs(folder, 0o700)
            self._lock = self._locked()
        except OSError as error:
            raise AuditFolderError(f"{folder}: {error.strerror}") from None
        try:
            self._open_newest()
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise AuditFolderError(f"{folder}: {error.strerror}") from None
            raise

    def append(self, line: bytes) -> None:
        """Write a line; raises OSError, and then the file is as it was before."""
        data = line + b"\n"
        if self._size and self._size + len(data) > self._segment_bytes:
            self._begin_next()
        written = 0
        try:
            written = os.write(self._fd, data)
        finally:
            if 0 < written < len(data):
                os.ftruncate(self._fd, self._size)
        if written < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += written

    def try_room(self) -> None:
        """Raise OSError where the disk would not take the longest line; the file is as it was before."""
        try:
            written = os.write(self._fd, bytes(MAX_LINE_BYTES))
        finally:
            os.ftruncate(self._fd, self._size)
        if written < MAX_LINE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self) -> None:
        """Have the disk hold what was written; may be called in a thread.  Raises OSError."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Close the file and let go of the folder."""
        for descriptor in (self._fd, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._fd = self._lock = -1

    def _locked(self) -> int:
        # By a descriptor of the folder, whose facts are then those of what is written to.
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
        folder = os.open(self.folder, flags)
        try:
            facts = os.fstat(folder)
            if facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
                raise AuditFolderError(
                    f"{self.folder}: others may come to it; make it yours alone: chmod 700 {self.folder}"
                )
            lock = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=folder)
        finally:
            os.close(folder)
        # A child that a killed server has just forked holds its locks until it has executed its program.
        until = time.monotonic() + _LOCK_S
        while not _is_taken(lock):
            if time.monotonic() >= until:
                os.close(lock)
                raise AuditFolderError(f"{self.folder}: another process writes to this audit log")
            time.sleep(_LOOK_S)
        return lock

    def _open_newest(self) -> None:
        names = segment_names(self.folder)
        self._fd = self._opened(names[-1] if names else _name(1))
        self._size = os.fstat(self._fd).st_size
        self.end = self._found_end()
        for name in reversed(names[:-1]):
            if self.end.number:
                break
            # The newer files are empty: they were begun, and nothing came to them.
            self.end = self._end_of(name, self.end.cut)

    def _found_end(self) -> End:
        tail = os.pread(self._fd, _TAIL_BYTES, max(0, self._size - _TAIL_BYTES))
        whole = tail.rfind(b"\n") + 1
        cut = len(tail) - whole
        if cut:
            os.ftruncate(self._fd, self._size - cut)
            self._size -= cut
        return _end_in(tail[:whole], cut)

    def _end_of(self, name: str, cut: int) -> End:
        with open(os.path.join(self.folder, name), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            return _end_in(file.read(), cut)

    def _begin_next(self) -> None:
        names = segment_names(self.folder)
        found = _NAME.fullmatch(names[-1]) if names else None
        os.fdatasync(self._fd)  # first: where that fails nothing is begun, and the next line tries again
        descriptor = self._opened(_name(int(found[1]) + 1 if found else 1))
        os.close(self._fd)
        self._fd, self._size = descriptor, 0
        for name in names[: max(0, len(names) + 1 - self._segments)]:
            os.unlink(os.path.join(self.folder, name))

    def _opened(self, name: str) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(os.path.join(self.folder, name), flags, 0o600)


def _end_in(tail: bytes, cut: int) -> End:
    lines = tail.splitlines()
    if not lines:
        return End(cut=cut)
    try:
        number = record_of(lines[-1])["n"]
    except Broken as error:
        raise AuditFolderError(
            f"the last line of the audit log is damaged: {error}; look at it with `execserver audit verify`, "
            "keep the folder, and name another one"
        ) from None
    assert isinstance(number, int)
    return End(number, digest_of(lines[-1]), cut)


def _name(number: int) -> str:
    return f"audit-{number:08d}.jsonl"


def _is_taken(lock: int) -> bool:
    """Take a lock; return False while another process has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
