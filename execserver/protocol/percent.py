"""Percent escapes of URLs.  Standard library only."""

from __future__ import annotations

_HEX_DIGITS = "0123456789ABCDEFabcdef"
# Filled with the first escape.  `functools`, which would remember it, takes a tenth of a file helper's time.
_decoded: dict[bytes, bytes] = {}


def percent_decode(text: str) -> bytes:
    """Return the decoded bytes of a URL path; broken escapes stay as they are."""
    first, *rest = text.encode().split(b"%")
    if not rest:
        return first
    if not _decoded:
        _decoded.update(
            {(a + b).encode(): bytes((int(a + b, 16),)) for a in _HEX_DIGITS for b in _HEX_DIGITS}
        )
    decoded = _decoded.get  # a client may send millions of escapes: one look-up for each
    parts = [first]
    for part in rest:
        byte = decoded(part[:2])
        parts += (b"%", part) if byte is None else (byte, part[2:])
    return b"".join(parts)
