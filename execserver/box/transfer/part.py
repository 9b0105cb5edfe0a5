"""A large file from a box while it is not whole: beside its place, under a name that says so.

It stays when a copy is cut, and the next one goes on behind it.  The name may be taken by anybody who can
write to the folder, so what is no plain file of one's own is replaced.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from typing import Final

from execserver.box.trees.below import Below, Path
from execserver.box.trees.here import digest
from execserver.box.trees.nodes import PERMISSIONS, Node, part_name
from execserver.files.change import take_place

_OPEN: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class PartFile:
    """Owns the descriptors of the part and of its folder until `close`."""

    def __init__(self, below: Below, path: Path) -> None:
        """Open the part of the file at a path.  Raises OSError."""
        self._name = path[-1]
        self._part = part_name(path[-1])
        self._is_finished = False
        self._parent = below.opened(path[:-1])
        try:
            self._fd = _own(self._part, self._parent)
        except BaseException:
            os.close(self._parent)
            raise

    @property
    def size(self) -> int:
        """How many bytes are there."""
        return os.fstat(self._fd).st_size

    def digest(self, length: int) -> str:
        """Return the SHA-256 of the first bytes, in hexadecimal digits."""
        return digest(self._fd, 0, length)

    def cut(self, size: int) -> None:
        """Keep the first bytes only."""
        os.ftruncate(self._fd, size)

    def write(self, offset: int, data: bytes) -> None:
        """Write all bytes at an offset.  Raises OSError."""
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self._fd, rest, offset)
            offset += written
            rest = rest[written:]

    def finish(self, node: Node) -> None:
        """Give it permissions, time and its name.  Raises OSError."""
        os.ftruncate(self._fd, node.size)
        os.fchmod(self._fd, node.mode & PERMISSIONS)
        os.utime(self._fd, ns=(node.modified_ns, node.modified_ns))
        take_place((self._part, self._parent), (self._name, self._parent))
        self._is_finished = True

    def close(self) -> None:
        """Release both; what is not finished stays, if there is anything."""
        try:
            if not self._is_finished and not self.size:
                os.unlink(self._part, dir_fd=self._parent)
        except OSError:
            pass  # it is in nobody's way
        finally:
            os.close(self._fd)
            os.close(self._parent)


def _own(name: bytes, folder: int) -> int:
    try:
        fd = os.open(name, _OPEN, 0o600, dir_fd=folder)
    except OSError:
        fd = -1  # a link, or a file that others own
    if fd >= 0:
        status = os.fstat(fd)
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_uid == os.geteuid():
            _lock(fd)
            return fd
        os.close(fd)
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass
    fd = os.open(name, _OPEN | os.O_EXCL, 0o600, dir_fd=folder)
    _lock(fd)
    return fd


def _lock(fd: int) -> None:
    """Keep others from writing to it at the same time; close it if one does.  Raises OSError."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise BlockingIOError(errno.EAGAIN, "another copy is writing it") from None
    except OSError:
        pass  # a file system without locks
