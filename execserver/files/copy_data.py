"""Copies the bytes of one file to another, by the cheapest call that the two file systems allow.

Holes stay holes: an empty file of 4 TB takes no room, nor does its copy.
"""

from __future__ import annotations

import errno
import os

from execserver.files.reading import UNSIZED_FILE_BYTES, read_fully
from execserver.files.writing import write_all, write_device
from execserver.files.yielding import no_pause

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from execserver.files.yielding import Pause

_PIECE_BYTES = 4 * 1024 * 1024  # about 2 ms of copying in the kernel between two pauses
_BUFFER_BYTES = 256 * 1024

# The two file systems or the kernel cannot do it this way, or a filter of system calls forbids it.
_NOT_THIS_WAY = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM})


def copy_data(source: int, target: int, size: int, pause: Pause = no_pause) -> None:
    """Copy a regular file to another one, both from their start.

    `size` is the size of the source when it was opened; no more is copied even if it grows.  0 means unknown
    (/proc), and everything is copied.  Raises OSError EFBIG if that has no end, as some files of /proc.
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
                break  # the file was cut meanwhile, or this call copies nothing of it: try the next one
            left -= copied
            pause()
    while not size and (copied := _by_hand(source, target, _PIECE_BYTES)):
        left -= copied
        if -left > UNSIZED_FILE_BYTES:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        pause()


def copy_sparse(source: int, target: int, size: int, pause: Pause = no_pause) -> None:
    """Copy a regular file with holes into an empty one, as `copy_data` does, but write only the data."""
    end = size
    for start, stop in _data_ranges(source, size):
        os.lseek(source, start, os.SEEK_SET)
        os.lseek(target, start, os.SEEK_SET)
        copy_data(source, target, stop - start, pause)
        end = min(size, os.fstat(source).st_size)  # the source may be cut meanwhile
        if os.lseek(source, 0, os.SEEK_CUR) < stop:
            break
        pause()
    os.ftruncate(target, end)
    os.lseek(target, end, os.SEEK_SET)


def has_holes(source: int, status: os.stat_result) -> bool:
    """Return whether a file has holes; for a small file, judge by its number of blocks alone."""
    size = status.st_size
    if status.st_blocks * 512 < size or size < _PIECE_BYTES:
        return status.st_blocks * 512 < size
    try:
        return os.lseek(source, 0, os.SEEK_HOLE) < size  # allocated blocks without data count as holes, too
    except OSError:
        return False
    finally:
        os.lseek(source, 0, os.SEEK_SET)


def data_bytes(source: int, size: int, pause: Pause = no_pause) -> int:
    """Return how many bytes of a file are data, not holes."""
    total = 0
    for start, stop in _data_ranges(source, size):
        total += stop - start
        pause()
    os.lseek(source, 0, os.SEEK_SET)
    return total


def _data_ranges(source: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each data range; the whole rest if the file system cannot tell."""
    at = 0
    while at < size:
        try:
            start = os.lseek(source, at, os.SEEK_DATA)
            at = min(size, os.lseek(source, start, os.SEEK_HOLE))
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # only a hole is left
            start, at = at, size
        if start < at:
            yield start, at


def copy_to_device(source: int, device: int, timeout_s: float, pause: Pause = no_pause) -> None:
    """Copy a file to a character device; raise OSError ETIMEDOUT if that takes nothing for too long.

    Copies no more than the size of the file, or the limit for files of unknown size: the source may have no
    end, and a device like /dev/null takes everything.
    """
    left = os.fstat(source).st_size or UNSIZED_FILE_BYTES
    while left > 0 and (data := read_fully(source, min(left, _BUFFER_BYTES))):
        write_device(device, data, timeout_s)
        left -= len(data)
        pause()


# Each of these reads and writes at the current offsets, and advances both by the number it returns.


def _by_copy_file_range(source: int, target: int, length: int) -> int:
    return os.copy_file_range(source, target, length)


def _by_sendfile(source: int, target: int, length: int) -> int:
    return os.sendfile(target, source, None, length)


def _by_hand(source: int, target: int, length: int) -> int:
    data = read_fully(source, min(length, _BUFFER_BYTES))
    write_all(target, data)
    return len(data)
