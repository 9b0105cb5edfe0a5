"""Removes files and trees, never through a symlink.

A tree is walked by descriptors, so a directory that is swapped for a symlink meanwhile is not followed, and
depth costs neither stack nor path length.
"""

from __future__ import annotations

import errno
import os
import stat

from execserver.files.directory_stack import DirectoryStack
from execserver.files.yielding import no_pause

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.files.yielding import Pause

_BATCH = 256  # names removed between two pauses
_REFILLS = 64  # how often emptied directories may turn out to be filled again before that is an error


def remove(path: bytes, recursive: bool, force: bool, pause: Pause = no_pause) -> None:
    """Remove a file, a symlink itself, or a directory; with `force` a missing path is no error.

    A directory that is not empty needs `recursive`, else OSError ENOTEMPTY.  The root directory is refused
    with EBUSY before anything is removed.
    """
    try:
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(path)
        elif not recursive:
            os.rmdir(path)
        elif os.path.samestat(status, os.lstat(b"/")):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        else:
            TreeRemoval(pause).run(path)
    except FileNotFoundError:
        if not force:
            raise


def removes_a_tree(path: bytes, recursive: bool) -> bool:
    """Return whether `remove` would have to list a directory, which can take long."""
    try:
        return recursive and stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


class TreeRemoval:
    """One removal of one tree; others may add and remove names in it meanwhile."""

    def __init__(self, pause: Pause, dir_fd: int | None = None) -> None:
        """`dir_fd` is the directory to which relative names of roots belong."""
        self._pause = pause
        self._dir_fd = dir_fd
        self._removed = 0
        self._refills = 0

    def run(self, root: bytes) -> None:
        """Remove a directory with everything in it."""
        while True:
            with self._stack(root) as stack:
                self._empty(stack)
            if self._rmdir(root, self._dir_fd):
                return

    def _stack(self, root: bytes) -> DirectoryStack:
        return DirectoryStack(root, dir_fd=self._dir_fd)

    def _empty(self, stack: DirectoryStack) -> None:
        """Remove everything below the directory with which the stack begins."""
        # Each level lists the directories still to empty; the one being emptied stays last in its list.
        pending = [self._unlink_entries(stack.fd)]
        while True:
            if pending[-1]:
                if self._enter(stack, pending[-1]):
                    pending.append(self._unlink_entries(stack.fd))
                continue
            pending.pop()
            if not pending:
                return
            stack.leave()
            # If it was filled again meanwhile, it stays in the list and is entered once more.
            if self._rmdir(pending[-1][-1], stack.fd):
                pending[-1].pop()

    def _enter(self, stack: DirectoryStack, names: list[bytes]) -> bool:
        """Go into the last directory of the list; drop it from the list if it is gone or no directory."""
        try:
            stack.enter(names[-1])
            return True
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            self._unlink(names[-1], stack.fd)
        names.pop()
        return False

    def _unlink_entries(self, fd: int) -> list[bytes]:
        """Remove all entries except directories; return the names of the directories."""
        directories = []
        with os.scandir(fd) as entries:
            for entry in entries:
                name = os.fsencode(entry.name)
                if entry.is_dir(follow_symlinks=False) or not self._unlink(name, fd):
                    directories.append(name)
        return directories

    def _unlink(self, name: bytes, fd: int) -> bool:
        """Remove one name; return False if it is a directory by now."""
        try:
            os.unlink(name, dir_fd=fd)
        except FileNotFoundError:
            pass
        except IsADirectoryError:
            return False
        self._count()
        return True

    def _rmdir(self, name: bytes, fd: int | None) -> bool:
        """Remove an emptied directory; return False if something was put into it meanwhile."""
        try:
            os.rmdir(name, dir_fd=fd)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or self._refills >= _REFILLS:
                raise
            self._refills += 1
            return False
        self._count()
        return True

    def _count(self) -> None:
        self._removed += 1
        if self._removed % _BATCH == 0:
            self._pause()
