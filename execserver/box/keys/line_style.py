"""The style of characters by the SGR sequences of a terminal, as bits: 0 is the plain one.  Pure."""

from __future__ import annotations

from typing import Final

UNKNOWN_STYLE: Final = 1
_FOREGROUND, _BACKGROUND, _UNDERLINE_COLOUR = 2, 4, 8
_ON: Final[dict[int, int]] = {
    **dict.fromkeys((*range(30, 39), *range(90, 98)), _FOREGROUND),
    **dict.fromkeys((*range(40, 49), *range(100, 108)), _BACKGROUND),
    58: _UNDERLINE_COLOUR,
    **dict.fromkeys((1, 2), 16),
    3: 32,
    **dict.fromkeys((4, 21), 64),
    **dict.fromkeys((5, 6), 128),
    7: 256,
    8: 512,
    9: 1024,
    53: 2048,
}
_OFF: Final = {39: 2, 49: 4, 59: 8, 22: 16, 23: 32, 24: 64, 25: 128, 27: 256, 28: 512, 29: 1024, 55: 2048}
_WITH_COLOUR: Final = frozenset((38, 48, 58))
_VALUES: Final = {5: 2, 2: 4}  # kind of a colour -> how many numbers it takes, its own among them


def styled(style: int, parameters: bytes) -> int:
    """Return the style after a sequence with these parameters."""
    codes = parameters.split(b";")
    at = 0
    while at < len(codes):
        code, _, more = codes[at].partition(b":")
        number = int(code) if code.isdigit() and len(code) < 6 else 0 if not code else -1
        at += 1
        if number in _WITH_COLOUR and not more:
            kind = codes[at] if at < len(codes) else b""
            at += _VALUES.get(int(kind) if kind in (b"2", b"5") else 0, len(codes))
        if number == 0 and not more:
            style = 0
        elif number in _OFF and not more:
            style &= ~_OFF[number]
        else:
            style |= _ON.get(number, UNKNOWN_STYLE)
    return style
