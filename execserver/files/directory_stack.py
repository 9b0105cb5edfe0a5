"""The directory descriptor stack: the open directories from the root of a tree walk to the current one.

Every step is relative to a descriptor, so a directory that is swapped for a symlink cannot lead an operation
elsewhere, and no path grows longer than the kernel takes.  The depth is not limited: only the last levels
stay open.  A closed one is reached again through `..`, and must still be the same directory.
"""

from __future__ import annotations

import errno
import os

OPEN_LEVELS = 32  # per stack; a copy has two
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NONBLOCK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

    Identity = tuple[int, int]  # device and inode


class DirectoryStack:
    """The directories from a root to the current one.  Owns their descriptors until `close`."""

    __slots__ = ("_closable", "_descriptors", "_identities", "_times")

    def __init__(self, root: bytes, follow: bool = False, dir_fd: int | None = None) -> None:
        """Open the root directory; a symlink there is an error unless `follow`."""
        fd = os.open(root, _DIRECTORY if follow else _DIRECTORY | os.O_NOFOLLOW, dir_fd=dir_fd)
        self._descriptors = [fd]
        self._identities = [_identity(fd)]
        self._times = {self.identity: 1}  # how often each is in the stack: a bind mount may repeat one
        self._closable: list[int] = []  # levels that may be closed, from the root down

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def fd(self) -> int:
        """The descriptor of the current directory; valid until the next move."""
        return self._descriptors[-1]

    @property
    def identity(self) -> Identity:
        """Device and inode of the current directory."""
        return self._identities[-1]

    def holds(self, identity: Identity) -> bool:
        """Return whether a directory is the current one or above it in the stack."""
        return identity in self._times  # a copy asks at every level, so a search would be quadratic

    def enter(self, name: bytes, follow: bool = False) -> None:
        """Go down into a directory; raise OSError ENOTDIR or ELOOP for a symlink unless `follow`."""
        linked = False
        try:
            fd = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=self.fd)
        except OSError as error:
            if not follow or error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            fd = self._open_linked(name)
            linked = True
        parent = len(self._descriptors) - 1
        self._descriptors.append(fd)
        identity = _identity(fd)
        self._identities.append(identity)
        self._times[identity] = self._times.get(identity, 0) + 1
        # `..` of a directory behind a symlink is not where we came from: such a parent stays open.
        if not linked:
            self._closable.append(parent)
            if len(self._closable) > OPEN_LEVELS:
                self._close_level(self._closable.pop(0))

    def leave(self) -> None:
        """Go up; raise OSError ESTALE if the directory was moved to another parent meanwhile."""
        # The current directory must stay open until its parent is: `..` is opened through it.
        left = self._descriptors.pop()
        identity = self._identities.pop()
        self._times[identity] -= 1
        if not self._times[identity]:
            del self._times[identity]
        try:
            parent = len(self._descriptors) - 1
            if self._descriptors[parent] < 0:
                self._descriptors[parent] = os.open(b"..", _DIRECTORY, dir_fd=left)
                if _identity(self.fd) != self.identity:
                    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            elif self._closable and self._closable[-1] == parent:
                self._closable.pop()
        finally:
            os.close(left)

    def _open_linked(self, name: bytes) -> int:
        """Open the directory that a symlink in the current one leads to; path guards override this."""
        return os.open(name, _DIRECTORY, dir_fd=self.fd)

    def close(self) -> None:
        """Close everything; calling it again is fine."""
        self._closable.clear()
        for level in range(len(self._descriptors)):
            self._close_level(level)

    def _close_level(self, level: int) -> None:
        fd, self._descriptors[level] = self._descriptors[level], -1
        if fd >= 0:
            os.close(fd)


def _identity(fd: int) -> Identity:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino
