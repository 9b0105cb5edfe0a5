"""Patterns of clients in which `*` is any run of characters and `?` one character.

No regular expression is made of them: a pattern with many `*` could keep one busy without end, and making one
takes longer than most texts do.  What lies between two `*` is looked for once, so matching takes text times
pattern at worst, some nanoseconds for each pair of characters, and mostly far less.
"""

from __future__ import annotations

from functools import lru_cache

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
    count = end - begin - len(piece) + 1
    if count <= 0:
        return -1
    # All places at once, a bit for each: one by one they take Python thirty times as long.
    places, known = ((1 << count) - 1) << begin, _known(text)
    for index, wanted in enumerate(piece):
        if wanted == _ONE:
            continue
        if wanted not in known:
            known[wanted] = _bits(wanted, text)
        places &= known[wanted] >> index
        if not places:
            return -1
    return (places & -places).bit_length() - 1


@lru_cache(maxsize=1)
def _known(text: str) -> dict[str, int]:
    """Return where characters of a text stand, as far as that was asked: one text has many patterns."""
    return {}


def _bits(character: str, text: str) -> int:
    """Return a number with a bit for each place of a character."""
    bits = bytearray(len(text) // 8 + 1)
    at = text.find(character)
    while at >= 0:
        bits[at >> 3] |= 1 << (at & 7)
        at = text.find(character, at + 1)
    return int.from_bytes(bits, "little")
