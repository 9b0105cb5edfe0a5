"""A span of time as a person writes it: 90s, 15m, 8h or 7d."""

from __future__ import annotations

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DIGITS = 6  # a year has 8,760 hours; more is a mistake


def seconds(text: str) -> int | None:
    """Return the seconds of a span; None for a text that is none."""
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS or len(number) > _DIGITS or not (number.isascii() and number.isdigit()):
        return None
    return int(number) * _UNITS[unit]
