"""No-symlinks mode: file operations for `followSymlinks: false` (wire contract, section 12).

A symlink is refused wherever it stands in a path.  Paths are opened one name at a time, each relative to the
descriptor before, so a directory that is swapped for a symlink meanwhile leads nowhere.
"""

from __future__ import annotations

import errno
import os
import stat

from execserver.files import opening
from execserver.files.birth_time import birth_time_ms
from execserver.files.metadata import described
from execserver.protocol.errors import InternalError, InvalidRequest

_PASS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_DIRECTORY_MODE = 0o777


class ResolvedName:
    """A name in a directory that was reached without symlinks.

    Owns the directory's descriptor until `close`.  The name is `.` if the path is the directory itself.
    """

    __slots__ = ("fd", "name")

    def __init__(self, path: bytes, make: bool = False) -> None:
        """Go down an absolute path to its last name; with `make`, make missing directories.

        Raises OSError, ENOTDIR for a symlink on the way.
        """
        names = [name for name in path.split(b"/") if name not in (b"", b".")]
        # A path that ends with `..` is a directory itself: it is entered, and named by `.`.
        self.name = names.pop() if names and names[-1] != b".." else b"."
        self.fd = os.open(b"/", _PASS)
        try:
            for name in names:
                self._enter(name, make)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ResolvedName:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def status(self) -> os.stat_result:
        """Return the status of the name itself.  Raises OSError."""
        return os.stat(self.name, dir_fd=self.fd, follow_symlinks=False)

    def close(self) -> None:
        """Close the directory."""
        os.close(self.fd)

    def _enter(self, name: bytes, make: bool) -> None:
        try:
            fd = os.open(name, _PASS, dir_fd=self.fd)
        except FileNotFoundError:
            if not make:
                raise
            try:
                os.mkdir(name, _NEW_DIRECTORY_MODE, dir_fd=self.fd)
            except FileExistsError:
                pass  # another process was faster; what it made shows when it is opened
            fd = os.open(name, _PASS, dir_fd=self.fd)
        left, self.fd = self.fd, fd
        os.close(left)


def open_regular(path: bytes) -> int:
    """Open a regular file for reading; the caller owns the descriptor."""
    with ResolvedName(path) as resolved:
        return open_regular_at(resolved.fd, resolved.name, resolved.status())


def open_regular_at(dir_fd: int, name: bytes, status: os.stat_result) -> int:
    """Open a name with the given status for reading; the caller owns the descriptor.

    Raises OSError ELOOP for a symlink, InvalidRequest for anything else that is no regular file.
    """
    refuse_link(status)
    if not stat.S_ISREG(status.st_mode):
        raise not_regular()
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | opening.ALWAYS, dir_fd=dir_fd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise not_regular()
    return fd


def open_target(path: bytes) -> int:
    """Open a regular file or a character device for writing, without emptying it; the caller owns it."""
    with ResolvedName(path) as resolved:
        try:
            status = resolved.status()
            refuse_link(status)
            opening.check_target(path, status.st_mode)
        except FileNotFoundError:
            pass  # to be created
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | opening.ALWAYS
        fd = os.open(resolved.name, flags, opening.NEW_FILE_MODE, dir_fd=resolved.fd)
    try:
        opening.check_target(path, os.fstat(fd).st_mode)
    except BaseException:
        os.close(fd)
        raise
    return fd


def create_directory(path: bytes, recursive: bool) -> None:
    """Make a directory; with `recursive` also its parents, and an existing one is no error."""
    with ResolvedName(path, make=recursive) as resolved:
        create_directory_at(resolved.fd, resolved.name, recursive)


def create_directory_at(dir_fd: int, name: bytes, recursive: bool) -> None:
    """Make a directory of that name.  Raises OSError, ENOTDIR if a symlink or a file has the name."""
    try:
        os.mkdir(name, _NEW_DIRECTORY_MODE, dir_fd=dir_fd)
    except FileExistsError:
        if not stat.S_ISDIR(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
        if not recursive:
            raise


def symlink(text: bytes, path: bytes) -> None:
    """Make a symlink."""
    with ResolvedName(path) as resolved:
        os.symlink(text, resolved.name, dir_fd=resolved.fd)


def get_metadata(path: bytes) -> tuple[tuple[bool, bool, bool, int, int], int]:
    """Return what `metadata.get_metadata` does, and the time of birth in ms, 0 if unknown."""
    with ResolvedName(path) as resolved:
        status = resolved.status()
        refuse_named_link(status)
        return described(status, is_link=False), birth_time_ms(resolved.fd, resolved.name)


def remove(path: bytes, recursive: bool, force: bool) -> None:
    """Remove a file or an empty directory; with `force` a missing one is no error."""
    if recursive:
        raise recursive_removal()
    try:
        with ResolvedName(path) as resolved:
            remove_at(resolved.fd, resolved.name, resolved.status())
    except FileNotFoundError:  # of the name itself or of a directory on the way
        if not force:
            raise


def remove_at(dir_fd: int, name: bytes, status: os.stat_result) -> None:
    """Remove a name with the given status.

    If it becomes a symlink only now, that symlink itself is removed, as by every removal.
    """
    refuse_named_link(status)
    if stat.S_ISDIR(status.st_mode):
        os.rmdir(name, dir_fd=dir_fd)
    else:
        os.unlink(name, dir_fd=dir_fd)


def refuse_link(status: os.stat_result) -> None:
    """Raise OSError ELOOP for the status of a symlink, as opening it with O_NOFOLLOW does."""
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def refuse_named_link(status: os.stat_result) -> None:
    """Raise InvalidRequest for the status of a symlink, in operations that open nothing."""
    if stat.S_ISLNK(status.st_mode):
        raise InvalidRequest("path contains a symbolic link")


def not_regular() -> InvalidRequest:
    """Return the error for reading something other than a regular file."""
    return InvalidRequest("path is not a regular file")


def recursive_removal() -> InternalError:
    """Return the error for removing a tree."""
    return InternalError("recursive no-follow removal is unsupported")
