"""Room on a file system: refuse what certainly does not fit, and give back room after it ran out.

File systems that compress, share blocks or are elsewhere may take more than they report as free, so those are
tried by writing.
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

CHECKED_BYTES = 1024 * 1024  # less is written without a check

# These report exactly what is free, and each byte of data takes a byte of it.  xfs does so only for data from
# another file system: within itself it shares blocks.
_EXACT = frozenset({b"ext2", b"ext3", b"ext4", b"tmpfs"})
_EXACT_FROM_ELSEWHERE = _EXACT | {b"xfs"}
_BLOCK_BYTES = 512  # what st_blocks counts in, whatever the file system
_RAN_OUT = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def refuse_without_room(
    fd: int, needed: int, source_device: int = -1, exactly: Callable[[], int] | None = None
) -> None:
    """Raise OSError ENOSPC if `needed` bytes certainly do not fit into an open file.

    The file's own blocks count as free.  `exactly` is called for the exact number before anything is refused.
    """
    room = _room(fd)
    if room is None or needed <= room:
        return
    device = os.fstat(fd).st_dev
    if _kind_of(device) not in (_EXACT if device == source_device else _EXACT_FROM_ELSEWHERE):
        return
    if exactly is None or exactly() > room:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def give_back(fd: int, error: OSError, old_size: int) -> None:
    """Empty a file again that was empty before, if `error` says that its content did not fit."""
    if not old_size and error.errno in _RAN_OUT:
        os.ftruncate(fd, 0)
        os.lseek(fd, 0, os.SEEK_SET)


def _room(fd: int) -> int | None:
    """Return how many bytes a file may take, None without a limit."""
    try:
        found = os.fstatvfs(fd)
    except OSError:
        return None
    if not found.f_blocks:
        return None  # a tmpfs without a limit
    free = found.f_bfree if os.geteuid() == 0 else found.f_bavail  # some blocks are reserved for root
    return free * found.f_frsize + os.fstat(fd).st_blocks * _BLOCK_BYTES


def _kind_of(device: int) -> bytes:
    """Return the type of a device's file system, empty if unknown."""
    number = b"%d:%d" % (os.major(device), os.minor(device))
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            for line in file:
                fields = line.split()
                if fields[2] == number:
                    return fields[fields.index(b"-", 6) + 1]
    except (OSError, ValueError, IndexError):
        pass
    return b""
