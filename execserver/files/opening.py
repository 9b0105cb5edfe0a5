"""Opens files so that nothing hangs and nothing but files is opened.

A FIFO or a device is refused before it is opened, since opening alone can wake a writer or start a device.
The check is repeated on the descriptor, since the path may lead elsewhere by then.  The caller owns every
descriptor that a function returns; it is close-on-exec and non-blocking.
"""

from __future__ import annotations

import errno
import os
import stat

from execserver.protocol.errors import InvalidRequest
from execserver.protocol.paths import display

# O_NONBLOCK: no FIFO, lease or device makes an open wait.  O_NOCTTY: no terminal becomes the server's own.
ALWAYS = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
NEW_FILE_MODE = 0o666


def not_a_file(path: bytes) -> InvalidRequest:
    """Return the error for a path that should lead to a regular file and does not."""
    return InvalidRequest(f"path `{display(path)}` is not a file")


def open_regular(path: bytes) -> int:
    """Open a regular file for reading, following symlinks.  Raises InvalidRequest for anything else."""
    mode = os.stat(path).st_mode
    # Opening a socket fails by itself, with the error the contract has for it.
    if not stat.S_ISREG(mode) and not stat.S_ISSOCK(mode):
        raise refused_for_reading(path)
    fd = os.open(path, os.O_RDONLY | ALWAYS)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise not_a_file(path)
    return fd


def refused_for_reading(path: bytes, name: bytes | None = None, dir_fd: int | None = None) -> Exception:
    """Return the error of opening a path that is no regular file: a missing permission comes first.

    If `name` is given, that name in the directory `dir_fd` is checked in place of the path.
    """
    if not os.access(path if name is None else name, os.R_OK, dir_fd=dir_fd, effective_ids=True):
        return PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return not_a_file(path)


def open_entry(name: bytes, dir_fd: int | None) -> int:
    """Open a regular file, or an entry of the directory `dir_fd`, for reading; do not follow a symlink.

    Raises InvalidRequest if the name is of another kind by now.
    """
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | ALWAYS, dir_fd=dir_fd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise not_a_file(name)
    return fd


def open_replace(path: bytes) -> int:
    """Create a regular file, or empty it, for writing; links are followed, also a dangling one."""
    return emptied(open_target(path), path)


def emptied(fd: int, path: bytes) -> int:
    """Empty a regular file that was opened at a path, and return its descriptor; close anything else.

    Raises InvalidRequest for what is no regular file.
    """
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise not_a_file(path)
        if status.st_size:  # truncating an empty file costs more than this check
            os.ftruncate(fd, 0)
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_target(path: bytes, mode: int = NEW_FILE_MODE, dir_fd: int | None = None) -> int:
    """Open a regular file or a character device for writing, without emptying it; a new file gets `mode`.

    Follows symlinks.  Raises InvalidRequest for a FIFO or block device, OSError EISDIR for a directory and
    ENXIO for a socket.
    """
    try:
        check_target(path, os.stat(path, dir_fd=dir_fd).st_mode)
    except FileNotFoundError:
        pass  # it will be created; a missing parent shows when it is opened
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | ALWAYS, mode, dir_fd=dir_fd)
    try:
        check_target(path, os.fstat(fd).st_mode)
    except BaseException:
        os.close(fd)
        raise
    return fd


def check_target(path: bytes, mode: int) -> None:
    """Raise InvalidRequest for a kind of file that is never written."""
    if stat.S_ISFIFO(mode) or stat.S_ISBLK(mode):
        kind = "FIFO" if stat.S_ISFIFO(mode) else "block device"
        raise InvalidRequest(
            f"path `{display(path)}` is a {kind}: only files and character devices are written"
        )


def is_character_device(path: bytes) -> bool:
    """Return whether a path leads to a character device, which may be slow to accept data."""
    try:
        return stat.S_ISCHR(os.stat(path).st_mode)
    except OSError:
        return False
