"""Copying the bytes of one file to another, by the cheapest way the two file systems allow.

Holes stay holes: a file of 4 TB with nothing in it takes no room, nor does its copy.
"""

from __future__ import annotations

import errno
import os

from execserver.files.pausing import no_pause
from execserver.files.reading import UNSIZED_FILE_BYTES, read_fully
from execserver.files.writing import write_all, write_device

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from execserver.files.pausing import Pause

_PIECE_BYTES = 4 * 1024 * 1024  # about 2 ms of copying in the kernel between two pauses
_BUFFER_BYTES = 256 * 1024

# The two file systems or the kernel cannot do it this way, or a filter of system calls forbids it.
_NOT_THIS_WAY = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM})


def copy_data(source: int, target: int, size: int, pause: Pause = no_pause) -> None:
    """Copy a regular file to another one, both from their start.

    `size` is what the source had when it was opened, and what is copied even if it grows; 0 means unknown
    (/proc), and everything is copied.  Raises OSError EFBIG where that has no end, as in some of /proc.
    """
    left = size
    for way in (_by_copy_file_range, _by_sendfile, _by_hand):
        while left > 0:
            try:
                copied = way(source, target, min(left, _PIECE_BYTES))
            except OSError as error:
                if error.errno not in _NOT_THIS_WAY or way is _by_hand:
                    raise
                break
            if not copied:
                break  # the file was cut meanwhile; a way that copies nothing at all is followed by the next
            left -= copied
            pause()
    while not size and (copied := _by_hand(source, target, _PIECE_BYTES)):
        left -= copied
        if -left > UNSIZED_FILE_BYTES:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        pause()


def copy_sparse(source: int, target: int, size: int, pause: Pause = no_pause) -> None:
    """Copy a regular file that has holes into an empty one; as `copy_data`, but only the data is written."""
    end = size
    for start, stop in _data_ranges(source, size):
        os.lseek(source, start, os.SEEK_SET)
        os.lseek(target, start, os.SEEK_SET)
        copy_data(source, target, stop - start, pause)
        end = min(size, os.fstat(source).st_size)  # it may be cut meanwhile
        if os.lseek(source, 0, os.SEEK_CUR) < stop:
            break
        pause()
    os.ftruncate(target, end)
    os.lseek(target, end, os.SEEK_SET)


def has_holes(source: int, status: os.stat_result) -> bool:
    """Tell whether a file has holes; of a small one only what its number of blocks tells."""
    size = status.st_size
    if status.st_blocks * 512 < size or size < _PIECE_BYTES:
        return status.st_blocks * 512 < size
    try:
        return os.lseek(source, 0, os.SEEK_HOLE) < size  # also blocks that were set aside and never written
    except OSError:
        return False
    finally:
        os.lseek(source, 0, os.SEEK_SET)


def data_bytes(source: int, size: int, pause: Pause = no_pause) -> int:
    """Return how many bytes of a file are no holes."""
    total = 0
    for start, stop in _data_ranges(source, size):
        total += stop - start
        pause()
    os.lseek(source, 0, os.SEEK_SET)
    return total


def _data_ranges(source: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of all data; a file system that does not know its holes has data everywhere."""
    at = 0
    while at < size:
        try:
            start = os.lseek(source, at, os.SEEK_DATA)
            at = min(size, os.lseek(source, start, os.SEEK_HOLE))
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # nothing but a hole is left
            start, at = at, size
        if start < at:
            yield start, at


def copy_to_device(source: int, device: int, timeout_s: float, pause: Pause = no_pause) -> None:
    """Copy a file to a character device; raise OSError ETIMEDOUT when it takes nothing for too long.

    No more than its size, or what one of unknown size may have, since either may have no end.
    """
    left = os.fstat(source).st_size or UNSIZED_FILE_BYTES
    while left > 0 and (data := read_fully(source, min(left, _BUFFER_BYTES))):
        write_device(device, data, timeout_s)
        left -= len(data)
        pause()


# Each of these reads and writes where the descriptors stand and moves both on by what it returns.


def _by_copy_file_range(source: int, target: int, length: int) -> int:
    return os.copy_file_range(source, target, length)


def _by_sendfile(source: int, target: int, length: int) -> int:
    return os.sendfile(target, source, None, length)


def _by_hand(source: int, target: int, length: int) -> int:
    data = read_fully(source, min(length, _BUFFER_BYTES))
    write_all(target, data)
    return len(data)
