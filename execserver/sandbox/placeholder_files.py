"""The objects that placeholders are: made, opened and removed by descriptor, never through a link."""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.plan import Identity

DIRECTORY_MODE = 0o555
FILE_MODE = 0o444
_REFUSED = (errno.EACCES, errno.EPERM)


class PlaceholderError(Exception):
    """A protected path cannot be covered; the message says why."""


class NotEmpty(PlaceholderError):
    """Something stands at the place that is no placeholder."""


def identity_of(status: os.stat_result) -> Identity:
    """Return device, inode and file type."""
    return (status.st_dev, status.st_ino, stat.S_IFMT(status.st_mode))


def open_parent(path: bytes, parent: Identity | None) -> int:
    """Open the folder of an absolute path without following any link; the caller owns the descriptor.

    Raises OSError, and PlaceholderError when it is not the folder `parent`.
    """
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    current = os.open(b"/", flags)
    for name in os.path.dirname(path).split(b"/"):
        if name:
            previous = current
            try:
                current = os.open(name, flags, dir_fd=previous)
            finally:
                os.close(previous)
    if parent is not None and identity_of(os.fstat(current)) != parent:
        os.close(current)
        raise PlaceholderError(f"the folder of {os.fsdecode(path)} was replaced")
    return current


def make(parent_fd: int, name: bytes, directory: bool) -> bool:
    """Make an empty object; False when something is there already."""
    try:
        if directory:
            os.mkdir(name, DIRECTORY_MODE, dir_fd=parent_fd)
        else:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(name, flags, FILE_MODE, dir_fd=parent_fd))
    except FileExistsError:
        return False
    return True


def open_empty(parent_fd: int, name: bytes, directory: bool) -> int | None:
    """Open an empty directory or file; None when it is not there.  Raises PlaceholderError for others."""
    kind = os.O_DIRECTORY if directory else 0
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | kind
    try:
        fd = os.open(name, flags, dir_fd=parent_fd)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NotEmpty(f"something was put in the place of {os.fsdecode(name)}: {error.strerror}") from None
    status = os.fstat(fd)
    empty = not os.listdir(fd) if directory else stat.S_ISREG(status.st_mode) and not status.st_size
    if not empty:
        os.close(fd)
        raise NotEmpty(f"something was put in the place of {os.fsdecode(name)}")
    return fd


def may_be_placeholder(status: os.stat_result) -> bool:
    """Tell whether an object looks like a placeholder of whoever; the umask may have taken more rights."""
    if status.st_mode & 0o222:
        return False
    if stat.S_ISDIR(status.st_mode):
        return status.st_nlink <= 2
    return stat.S_ISREG(status.st_mode) and not status.st_size


def may_be_own_placeholder(status: os.stat_result) -> bool:
    """Tell whether an object looks like a placeholder of this user's."""
    return status.st_uid == os.geteuid() and may_be_placeholder(status)


def may_write_below(folder_fd: int) -> bool:
    """Tell whether this user may make files in a folder."""
    return os.access(b".", os.W_OK, dir_fd=folder_fd, effective_ids=True)


def nobody_may_create(error: OSError, parent_fd: int) -> bool:
    """Tell whether a failure shows that the command, with no more rights than this, cannot make it either."""
    if error.errno == errno.EROFS:
        return True
    # The folder's owner could give itself the right.
    return error.errno in _REFUSED and os.fstat(parent_fd).st_uid != os.geteuid() != 0


def is_at(parent_fd: int, name: bytes, identity: Identity) -> bool:
    """Tell whether an object has that name."""
    try:
        return identity_of(os.stat(name, dir_fd=parent_fd, follow_symlinks=False)) == identity
    except OSError:
        return False


def remove_if_still(parent_fd: int, name: bytes, identity: Identity) -> bool:
    """Remove an empty object if it is the one that was made; anything put into it or in its place stays.

    Returns whether it was removed just now.
    """
    try:
        found = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
        if identity_of(found) != identity:
            return False
        if stat.S_ISDIR(found.st_mode):
            os.rmdir(name, dir_fd=parent_fd)
        elif not found.st_size:
            os.unlink(name, dir_fd=parent_fd)
        else:
            return False
    except OSError:
        return False  # not empty, or gone
    return True
