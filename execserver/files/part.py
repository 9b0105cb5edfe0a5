"""The file in which a large one is collected beside its place: of one writer at a time.

Who writes is known by a mark, which the file itself carries as its time of modification: so it holds for all
servers that use the folder, costs no memory, and is still there after a restart.  Whoever begins at 0 puts
his mark, and so does whoever goes on behind what has come, which an empty piece says.  A piece of somebody
else is refused then, so that what is collected is of one writer, or begun anew by one.

A piece that is sent again, since its connection was lost, can meet itself: `Busy` says so.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from execserver.protocol.errors import InvalidRequest

_NS = 10**9
_FIRST_S = 315_532_800  # 1980, as FAT counts, in steps of two seconds and no further than 2048
_STEP_S, _STEPS = 2, 2**30
_TAKEN = "another copy has begun to write this file"


class Busy(InvalidRequest):
    """A part is being written at this moment, or has just got its own name; to be tried again."""

    def __init__(self) -> None:
        super().__init__(_TAKEN)


def mark_of(writer: str, size: int, modified_ns: int | None) -> int:
    """Return the mark of who writes a file of a size and time: a time in ns that every file system keeps."""
    from hashlib import blake2b  # late: few servers get parts

    text = f"{writer}\0{size}\0{modified_ns}".encode()
    number = int.from_bytes(blake2b(text, digest_size=8).digest(), "big") % _STEPS
    return (_FIRST_S + _STEP_S * number) * _NS


def take(fd: int, name: bytes, offset: int, length: int, mark: int) -> None:
    """Lock the open part of a name for so many bytes at an offset; the lock ends with the descriptor.

    Raises InvalidRequest if they may not be written, Busy if not now.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Busy from None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            raise
    if os.path.basename(os.readlink(b"/proc/self/fd/%d" % fd)) != name:
        raise Busy  # it has got its own name, or is gone, since it was opened
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        raise InvalidRequest("the part is no regular file of its own")
    if status.st_size < offset:
        raise InvalidRequest(f"bytes are missing before offset {offset}")
    if not offset:
        os.ftruncate(fd, 0)
    elif status.st_mtime_ns != mark and (length or status.st_size != offset):
        raise InvalidRequest(_TAKEN)


def leave(fd: int, mark: int) -> None:
    """Put the mark on a part, behind each write."""
    os.utime(fd, ns=(mark, mark))


def is_own(status: os.stat_result, folder: os.stat_result) -> bool:
    """Return whether a part is this user's, or that of who owns the folder, who can do there what he likes.

    On some file systems, such as FAT, all files are of one user.
    """
    return status.st_uid in (os.geteuid(), folder.st_uid)
