"""Where entries begin in a piece of a tar archive.

What unpacks a piece and what tells of it in the audit log read it by the same functions: else there could be
entries that one of them sees and the other does not.
"""

from __future__ import annotations

import io
import tarfile
from typing import NamedTuple

from execserver.protocol.errors import InvalidRequest

BLOCK = tarfile.BLOCKSIZE
_HEADER_BYTES = 64 * 1024  # of an entry with all that pax adds
_MOST_BYTES = 2**63 - 1


class Head(NamedTuple):
    """What stands before the content of an entry, and where in the piece that begins."""

    info: tarfile.TarInfo
    name: bytes
    content_at: int

    @property
    def size(self) -> int:
        """How many bytes of content follow.  As everybody reads it: an unknown type is one of a file."""
        has_content = self.info.isreg() or self.info.type not in tarfile.SUPPORTED_TYPES
        return self.info.size if has_content else 0


def is_end(chunk: bytes, at: int) -> bool:
    """Return whether the archive ends at a place."""
    return not any(chunk[at : at + BLOCK])


def next_head(chunk: bytes, at: int) -> Head | None:
    """Return the head of the entry at a place, None if it is not whole yet.  Raises InvalidRequest."""
    head = chunk[at : at + _HEADER_BYTES]
    try:
        with tarfile.TarFile(fileobj=io.BytesIO(head), encoding="utf-8", errors="surrogateescape") as archive:
            info = archive.firstmember  # type: ignore[attr-defined]
    except (tarfile.TarError, ValueError, OverflowError) as error:
        if len(head) < _HEADER_BYTES and at:
            return None
        raise InvalidRequest(f"malformed archive: {error}") from None
    if info is None or not 0 <= info.size <= _MOST_BYTES or info.issparse():
        raise InvalidRequest("malformed archive: a size is wrong, or a file is sparse")
    if at + info.offset_data > len(chunk):
        raise InvalidRequest("malformed archive: a header is too long")
    return Head(info, info.name.encode("utf-8", "surrogateescape"), at + info.offset_data)


def behind(chunk: bytes, at: int, size: int) -> int:
    """Return where content of a size ends, with its last block; the piece may have the beginning only."""
    part = max(0, min(size, len(chunk) - at))
    return min(at + part + -part % BLOCK, len(chunk))


def names_in(chunk: bytes, left: int) -> list[bytes]:
    """Return the names of the entries that begin in a piece, `left` bytes of content behind its beginning.

    Where it is damaged they end.
    """
    names: list[bytes] = []
    at = behind(chunk, 0, left)
    try:
        while at < len(chunk) and not is_end(chunk, at) and (head := next_head(chunk, at)) is not None:
            names.append(head.name)
            at = behind(chunk, head.content_at, head.size)
    except InvalidRequest:
        pass  # who unpacks it says so
    return names
