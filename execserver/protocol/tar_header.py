"""The parts of a tar archive's headers, as they come from a peer that is not trusted.  Pure.

Each takes time that is linear in its bytes, whatever they are.  `tarfile`, where CVE-2024-6232 is not mended,
takes seconds for some headers of 60 KB.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final

BLOCK: Final = 512
_MOST_DIGITS: Final = 8  # of a record's length
_CHECKSUM: Final = slice(148, 156)
_SIGNED: Final = struct.Struct("148b8x356b")
_BLANKS: Final = 8 * ord(" ")  # the checksum is counted as if it were blank


class BadHeader(ValueError):
    """What came is no header."""


def number(field: bytes) -> int:
    """Return the value of a number, octal or in GNU's form for large and negative ones.  Raises BadHeader."""
    if field[0] in (0o200, 0o377):
        value = int.from_bytes(field[1:], "big")
        return value if field[0] == 0o200 else value - 256 ** (len(field) - 1)
    digits = field.partition(b"\0")[0].strip(b" ") or b"0"
    if digits.strip(b"01234567"):
        raise BadHeader("a number is damaged")
    return int(digits, 8)


def is_sound(block: bytes) -> bool:
    """Return whether the checksum of a header's block is right.  Raises BadHeader if it is no number."""
    given = number(block[_CHECKSUM])
    if given == _BLANKS + _sum(block[:256]) + _sum(block[256:]) - sum(block[_CHECKSUM]):
        return True
    signed: int = _BLANKS + sum(_SIGNED.unpack(block))  # as some old programs count
    return given == signed


def _sum(half: bytes) -> int:
    # Adler-32 has one more than the sum of the bytes in its lower half, modulo 65521, which 256 of them do
    # not reach.  `sum` takes ten times as long, and was most of what a header costs.
    return (zlib.adler32(half) & 0xFFFF) - 1


def records(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values of a pax header, in their order.  Raises BadHeader."""
    at = 0
    while at < len(data) and data[at]:
        blank = data.find(b" ", at, at + _MOST_DIGITS + 1)
        digits = data[at : max(blank, at)]
        end = at + int(digits) if digits.isdigit() else 0
        equals = data.find(b"=", blank, end)
        if not blank + 1 < equals < end <= len(data) or data[end - 1] != ord("\n"):
            raise BadHeader("a pax header is damaged")
        yield data[blank + 1 : equals], data[equals + 1 : end - 1]
        at = end


def decimal(digits: bytes) -> int:
    """Return the value of a number in a pax header.  Raises BadHeader."""
    if not digits.isdigit() or len(digits) > 19:
        raise BadHeader("a number is damaged")
    return int(digits)
