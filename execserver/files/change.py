"""Changes and tells names, modes and times: `fs/rename`, `fs/chmod` and `fs/touch` as plain functions.

Each takes a name and the descriptor of its directory, or an absolute path and None.  No symlink is followed
by itself: the caller has resolved what is to be followed.
"""

from __future__ import annotations

import errno
import os
import stat
import time

_REPLACED = (stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR)
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC

Name = tuple[bytes, "int | None"]
Look = tuple[int, int, int, bytes]  # permissions, modified at (ns), size, target of a symlink or nothing
Times = tuple[int, int]  # of access and of modification, in nanoseconds since 1970; -1 stands for now


def take_place(source: Name, target: Name) -> None:
    """Give a name another one, in the place of a file, a symlink or an empty directory that has it.

    Raises FileExistsError for a device, FIFO or socket: whoever names `/dev/null` does not want it replaced.
    """
    (name, folder), (new_name, new_folder) = source, target
    try:
        mode = os.stat(new_name, dir_fd=new_folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG
    if stat.S_IFMT(mode) not in _REPLACED:
        raise FileExistsError(errno.EEXIST, "a device, FIFO or socket is there, which stays")
    os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=new_folder)


def rename(source: Name, target: Name, replace: bool) -> None:
    """Give a name another one.  Without `replace`, an existing target is an error, without a race."""
    if replace:
        take_place(source, target)
        return
    (name, folder), (new_name, new_folder) = source, target
    if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        os.mkdir(new_name, dir_fd=new_folder)  # fails for anything there; a rename replaces it if empty
        os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=new_folder)
    else:
        os.link(name, new_name, src_dir_fd=folder, dst_dir_fd=new_folder, follow_symlinks=False)
        os.unlink(name, dir_fd=folder)


def chmod(name: Name, mode: int) -> None:
    """Set the permissions of a file or directory; a symlink is an error of the system."""
    fd = os.open(name[0], _LOOK, dir_fd=name[1])
    try:
        os.chmod(b"/proc/self/fd/%d" % fd, mode)
    finally:
        os.close(fd)


def touch(name: Name, times: Times) -> None:
    """Set the times of what is there."""
    fd = os.open(name[0], _LOOK, dir_fd=name[1])
    try:
        if times == (-1, -1):
            os.utime(b"/proc/self/fd/%d" % fd)  # also for who may write and does not own it
            return
        now = time.time_ns()
        accessed, modified = (now if each == -1 else each for each in times)
        os.utime(b"/proc/self/fd/%d" % fd, ns=(accessed, modified))
    finally:
        os.close(fd)


def look(name: Name) -> Look:
    """Tell what is there; a symlink is not followed."""
    status = os.stat(name[0], dir_fd=name[1], follow_symlinks=False)
    is_link = stat.S_ISLNK(status.st_mode)
    target = os.readlink(name[0], dir_fd=name[1]) if is_link else b""
    return stat.S_IMODE(status.st_mode), status.st_mtime_ns, status.st_size, target
