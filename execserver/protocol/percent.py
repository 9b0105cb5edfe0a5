"""Percent escapes of URLs.  Standard library only."""

from __future__ import annotations

_HEX_DIGITS = b"0123456789ABCDEFabcdef"


def percent_decode(text: str) -> bytes:
    """Return the decoded bytes of a URL path; broken escapes stay as they are."""
    first, *rest = text.encode().split(b"%")
    parts = [first]
    for part in rest:
        digits = part[:2]
        if len(digits) == 2 and not digits.translate(None, _HEX_DIGITS):
            parts.append(bytes((int(digits, 16),)))
            parts.append(part[2:])
        else:
            parts.append(b"%" + part)
    return b"".join(parts)
