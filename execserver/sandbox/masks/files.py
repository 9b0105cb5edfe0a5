"""Mask targets as objects of the file system: made, opened and removed by descriptor, through no symlink."""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.plan import Identity

# No right to write, for anybody: `may_be_mask_target` knows them by that.
DIRECTORY_MODE = 0o555
FILE_MODE = 0o444
_REFUSED = (errno.EACCES, errno.EPERM)


class MaskTargetError(Exception):
    """A protected path cannot be masked; the message says why."""


class NotEmpty(MaskTargetError):
    """At the path is something that is no mask target."""


def identity_of(status: os.stat_result) -> Identity:
    """Return device, inode and file type."""
    return (status.st_dev, status.st_ino, stat.S_IFMT(status.st_mode))


def open_parent(path: bytes, parent: Identity | None) -> int:
    """Open the directory of an absolute path without following symlinks; the caller owns the descriptor.

    Raises OSError, and MaskTargetError when it is not the directory `parent`.
    """
    # One component at a time: O_NOFOLLOW concerns the last one only, and `openat2` is not on all kernels.
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
        raise MaskTargetError(f"the folder of {os.fsdecode(path)} was replaced")
    return current


def make(parent_fd: int, name: bytes, directory: bool) -> bool:
    """Make an empty object; return False when something is there already.  Raises OSError."""
    try:
        if directory:
            os.mkdir(name, DIRECTORY_MODE, dir_fd=parent_fd)
        else:
            # O_EXCL, as mkdir: only what we made is ours to remove.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(name, flags, FILE_MODE, dir_fd=parent_fd))
    except FileExistsError:
        return False
    return True


def open_empty(parent_fd: int, name: bytes, directory: bool) -> int | None:
    """Open an empty directory or file; None when nothing is there.  Raises NotEmpty for anything else."""
    kind = os.O_DIRECTORY if directory else 0
    # O_NONBLOCK: a FIFO that somebody put there would block us for ever.
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


def may_be_mask_target(status: os.stat_result) -> bool:
    """Tell whether an object looks like a mask target, whoever made it."""
    # Not compared with the modes above: the umask may have removed rights to read.
    if status.st_mode & 0o222:
        return False
    if stat.S_ISDIR(status.st_mode):
        return status.st_nlink <= 2  # more: it has directories in it
    return stat.S_ISREG(status.st_mode) and not status.st_size


def may_be_own_mask_target(status: os.stat_result) -> bool:
    """Tell whether an object looks like a mask target of this user's."""
    return status.st_uid == os.geteuid() and may_be_mask_target(status)


def may_write_below(folder_fd: int) -> bool:
    """Tell whether this user may make files in a directory."""
    return os.access(b".", os.W_OK, dir_fd=folder_fd, effective_ids=True)


def nobody_may_create(error: OSError, parent_fd: int) -> bool:
    """Tell whether a failure to make something shows that no command inside can make it either."""
    if error.errno == errno.EROFS:
        return True
    # A command has no more rights than this process.  But the owner of the directory, or root, could give
    # itself the right to write.
    return error.errno in _REFUSED and os.fstat(parent_fd).st_uid != os.geteuid() != 0


def is_at(parent_fd: int, name: bytes, identity: Identity) -> bool:
    """Tell whether the object at a name is still the one with that identity."""
    try:
        return identity_of(os.stat(name, dir_fd=parent_fd, follow_symlinks=False)) == identity
    except OSError:
        return False


def remove_if_still(parent_fd: int, name: bytes, identity: Identity) -> bool:
    """Remove an empty object if it is the one that was made; return whether it was removed.

    Whatever was put into it, or in its place, stays.
    """
    try:
        found = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
        if identity_of(found) != identity:
            return False
        if stat.S_ISDIR(found.st_mode):
            os.rmdir(name, dir_fd=parent_fd)  # the kernel refuses what is not empty
        elif not found.st_size:
            os.unlink(name, dir_fd=parent_fd)
        else:
            return False
    except OSError:
        return False  # not empty, or gone
    return True
