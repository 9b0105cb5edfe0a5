"""Records in a memory file, appended only: what was written before a kill is read after it, nothing torn.

A write of the kernel is not undone by a kill, but it may be cut at a page.  So each record has its length and
a checksum, and what is read ends at the first one that is not whole.  Standard library only.
"""

from __future__ import annotations

import errno
import os
import struct
from binascii import crc32

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD = struct.Struct("<IIB")  # bytes of the payload, checksum of kind and payload, kind


class Journal:
    """One memory file, of which this process owns a descriptor."""

    def __init__(self) -> None:
        """Raises OSError."""
        self.fd = memory_file()
        self.size = 0

    def append(self, kind: int, payload: bytes = b"") -> None:
        """Write one record behind the others.  Raises OSError where not all of it could be written."""
        data = _HEAD.pack(len(payload), _checksum(kind, payload), kind) + payload
        if os.write(self.fd, data) != len(data):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.size += len(data)

    def close(self) -> None:
        """Close the descriptor; whoever holds another one still reads it."""
        os.close(self.fd)


def memory_file() -> int:
    """Return a descriptor of a new memory file, close-on-exec.  Raises OSError."""
    return os.memfd_create("execserver-journal", os.MFD_CLOEXEC)


def records(fd: int) -> Iterator[tuple[int, bytes]]:
    """Yield kind and payload of each whole record of a memory file, the first first."""
    data = whole(fd)
    at = 0
    while at + _HEAD.size <= len(data):
        length, checksum, kind = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        payload = data[at : at + length]
        if len(payload) != length or _checksum(kind, payload) != checksum:
            return
        at += length
        yield kind, payload


def whole(fd: int) -> bytes:
    """Return what is in a memory file."""
    size = os.fstat(fd).st_size
    parts: list[bytes] = []
    at = 0
    while at < size and (part := os.pread(fd, size - at, at)):
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def _checksum(kind: int, payload: bytes) -> int:
    return crc32(payload, kind)
