"""Patterns of clients in which `*` is any run of characters and `?` one character.

No regular expression is made of them: a pattern with many `*` could keep one busy without end.  What lies
between two `*` is looked for once, so matching takes text times pattern at worst, and mostly far less.
"""

from __future__ import annotations

_ANY, _ONE = "*", "?"


class Wildcards:
    """One pattern."""

    __slots__ = ("_between", "_first", "_last")

    def __init__(self, pattern: str) -> None:
        self._first, *rest = pattern.split(_ANY)
        self._last = rest.pop() if rest else None  # None for a pattern without `*`
        self._between = rest

    def matches(self, text: str) -> bool:
        """Return whether the whole text matches."""
        first, last = self._first, self._last
        if last is None:
            return len(text) == len(first) and _stands(first, text, 0)
        at, end = len(first), len(text) - len(last)
        if at > end or not _stands(first, text, 0) or not _stands(last, text, end):
            return False
        for piece in self._between:
            found = _found(piece, text, at, end)
            if found < 0:
                return False
            at = found + len(piece)
        return True


def _stands(piece: str, text: str, at: int) -> bool:
    """Return whether a piece stands at a place; the text is long enough for it."""
    if _ONE not in piece:
        return text.startswith(piece, at)
    return all(wanted == _ONE or wanted == text[at + index] for index, wanted in enumerate(piece))


def _found(piece: str, text: str, begin: int, end: int) -> int:
    """Return the first place of a piece between two places, -1 if there is none."""
    if _ONE not in piece:
        return text.find(piece, begin, end)
    places = range(begin, end - len(piece) + 1)
    return next((at for at in places if _stands(piece, text, at)), -1)
