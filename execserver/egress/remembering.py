"""What was found out once, kept for the next time: so many entries at most, then all are forgotten."""

from __future__ import annotations

from typing import TypeVar

MAX_REMEMBERED = 256

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def remember(known: dict[_Key, _Value], key: _Key, value: _Value) -> _Value:
    """Note a value that does not change, and return it."""
    if len(known) >= MAX_REMEMBERED:
        known.clear()
    known[key] = value
    return value
