"""Where entries begin in a piece of a tar archive.

What unpacks a piece and what tells of it in the audit log read it by the same functions: else there could be
entries that one of them sees and the other does not.  What they see is what `tarfile` does.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from execserver.protocol.errors import InvalidRequest
from execserver.protocol.tar_header import BLOCK, BadHeader, decimal, is_sound, number, records

FILE, DIRECTORY, SYMLINK, OTHER = "file", "directory", "symlink", "other"
_HEADER_BYTES: Final = 64 * 1024  # of an entry with all that pax adds
_MOST_BYTES: Final = 2**63 - 1
_NS: Final = 10**9
_KINDS: Final = {b"0": FILE, b"\0": FILE, b"7": FILE, b"2": SYMLINK, b"5": DIRECTORY}
_WITHOUT_CONTENT: Final = frozenset({b"1", b"2", b"3", b"4", b"5", b"6"})
_ALL, _NEXT, _LONG_NAME, _LONG_TARGET = b"g", (b"x", b"X"), b"L", b"K"
_WANTED: Final = frozenset({b"path", b"linkpath", b"size", b"mtime"})
_SPARSE: Final = b"GNU.sparse."


class Head(NamedTuple):
    """What stands before the content of an entry, and where in the piece that begins."""

    name: bytes
    kind: str
    size: int  # of the content that follows: an unknown type has one, as everybody reads it
    mode: int
    modified_ns: int
    target: bytes
    content_at: int


def is_end(chunk: bytes, at: int) -> bool:
    """Return whether the archive ends at a place."""
    return not any(chunk[at : at + BLOCK])


def next_head(chunk: bytes, at: int) -> Head | None:
    """Return the head of the entry at a place, None if it is not whole yet.  Raises InvalidRequest."""
    try:
        return _head(chunk, at, at + _HEADER_BYTES)
    except BadHeader as error:
        if at and len(chunk) - at < _HEADER_BYTES:
            return None
        raise InvalidRequest(f"malformed archive: {error}") from None


def _head(chunk: bytes, at: int, end: int) -> Head:
    """Read headers until that of the entry itself.  Of several, what stands first holds."""
    for_all: dict[bytes, bytes] = {}
    given: dict[bytes, bytes] = {}
    while True:
        block = chunk[at : min(at + BLOCK, end)]
        if len(block) < BLOCK:
            raise BadHeader("a header is too long, or not whole")
        if not is_sound(block):
            raise BadHeader("the checksum of a header is wrong")
        at += BLOCK
        kind = block[156:157]
        if kind not in (_ALL, *_NEXT, _LONG_NAME, _LONG_TARGET):
            return _made(block, for_all | given, at)
        size = number(block[124:136])
        data = chunk[at : at + size] if 0 <= size <= end - at else b""
        if len(data) != size:
            raise BadHeader("a header is too long, or not whole")
        at += size + -size % BLOCK
        if kind == _ALL:
            for_all |= _wanted(data)
        elif kind in _NEXT:
            given = _wanted(data) | given
        else:
            given.setdefault(b"path" if kind == _LONG_NAME else b"linkpath", _text(data))


def _wanted(data: bytes) -> dict[bytes, bytes]:
    """Return what counts of a pax header: others may be as many as fit."""
    return {
        key: value
        for full, value in records(data)
        if (key := _SPARSE if full.startswith(_SPARSE) else full) in _WANTED or key is _SPARSE
    }


def _made(block: bytes, given: dict[bytes, bytes], content_at: int) -> Head:
    flag, name = block[156:157], _text(block[:100])
    kind = DIRECTORY if flag == b"\0" and name.endswith(b"/") else _KINDS.get(flag, OTHER)
    if prefix := _text(block[345:500]):
        name = prefix + b"/" + name
    name = given.get(b"path", name)
    size = decimal(given[b"size"]) if b"size" in given else number(block[124:136])
    if flag == b"S" or _SPARSE in given or not 0 <= size <= _MOST_BYTES:
        raise BadHeader("a size is wrong, or a file is sparse")
    return Head(
        name=name.rstrip(b"/") if kind == DIRECTORY or b"path" in given else name,
        kind=kind,
        size=0 if kind == DIRECTORY or flag in _WITHOUT_CONTENT else size,
        mode=number(block[100:108]) & 0o777,
        modified_ns=_modified_ns(given.get(b"mtime"), block[136:148]),
        target=given.get(b"linkpath", _text(block[157:257])),
        content_at=content_at,
    )


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _modified_ns(told: bytes | None, field: bytes) -> int:
    """Return a time, or the nearest one that files can have here: not before 1970."""
    if told is None:
        return min(max(number(field), 0), 2**33) * _NS
    seconds, _, rest = told.partition(b".")
    if not seconds.isdigit() or len(seconds) > 10 or not (rest.isdigit() or not rest):
        return 0
    return int(seconds) * _NS + int(rest[:9].ljust(9, b"0"))


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
