"""An asciicast as a picture: the last screen of a recorded terminal, whose lines appear as they were printed.

Viewers that know no animation, and people who asked for none, see the whole screen.  The picture holds text
only: no script, no font, nothing that is loaded from elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, Final, NamedTuple
from xml.sax.saxutils import escape

import pyte

_CELL: Final = 8.4  # pixels, at the size of the letters below
_LINE: Final = 19
_MARGIN: Final = 14
_COLOURS: Final = {
    "default": "#d8dee9",
    "black": "#4c566a",
    "red": "#e06c75",
    "green": "#98c379",
    "brown": "#e5c07b",
    "blue": "#61afef",
    "magenta": "#c678dd",
    "cyan": "#56b6c2",
    "white": "#ffffff",
}
_STYLE: Final = (
    "text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
    "white-space:pre}.b{font-weight:bold}g{animation:show .1s both}@keyframes show{from{opacity:0}}"
    "@media(prefers-reduced-motion){g{animation:none}}"
)


class Piece(NamedTuple):
    """What a program wrote, and when: seconds since the beginning."""

    at_s: float
    text: str


class Cast(NamedTuple):
    """A recording, as an asciicast of version 2 has it."""

    columns: int
    rows: int
    pieces: list[Piece]

    def dumped(self) -> str:
        """Return the file."""
        head = {"version": 2, "width": self.columns, "height": self.rows}
        lines: list[Any] = [head, *([round(piece.at_s, 3), "o", piece.text] for piece in self.pieces)]
        return "".join(f"{json.dumps(line)}\n" for line in lines)


def loaded(text: str) -> Cast:
    """Return the recording in a file.  Raises ValueError."""
    head, *events = (json.loads(line) for line in text.splitlines())
    if head.get("version") != 2:
        raise ValueError("this is no asciicast of version 2")
    pieces = [Piece(at_s, written) for at_s, kind, written in events if kind == "o"]
    return Cast(head["width"], head["height"], pieces)


def svg(cast: Cast) -> str:
    """Return the picture."""
    screen, since = _played(cast)
    used = max((row for row, line in enumerate(screen.display) if line.strip()), default=0) + 1
    width, height = round(cast.columns * _CELL + 2 * _MARGIN), used * _LINE + 2 * _MARGIN
    rows = (_row(screen, row, since.get(row, 0.0)) for row in range(used))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img">',
            f"<style>{_STYLE}</style>",
            f'<rect width="{width}" height="{height}" rx="8" fill="#1e2430"/>',
            *(row for row in rows if row),
            "</svg>\n",
        ]
    )


def _played(cast: Cast) -> tuple[pyte.Screen, dict[int, float]]:
    """Return the last screen, and when each row began to be what it is."""
    screen = pyte.Screen(cast.columns, cast.rows)
    stream = pyte.Stream(screen)
    since: dict[int, float] = {}
    for piece in cast.pieces:
        before = list(screen.display)
        stream.feed(piece.text)
        for row, (old, new) in enumerate(zip(before, screen.display, strict=True)):
            if not new.startswith(old.rstrip()) or (new.strip() and not old.strip()):
                since[row] = piece.at_s
    return screen, since


def _row(screen: pyte.Screen, row: int, at_s: float) -> str:
    runs = "".join(_run(row, column, cells) for column, cells in _runs(screen, row))
    return f'<g style="animation-delay:{at_s:.2f}s">{runs}</g>' if runs else ""


def _runs(screen: pyte.Screen, row: int) -> Iterator[tuple[int, list[Any]]]:
    """Yield neighbouring cells that look the same, and the column of the first one."""
    cells = [screen.buffer[row][column] for column in range(screen.columns)]
    for _, group in groupby(enumerate(cells), key=lambda each: (each[1].fg, each[1].bold)):
        found = list(group)
        yield found[0][0], [cell for _, cell in found]


def _run(row: int, column: int, cells: Iterable[Any]) -> str:
    found = list(cells)
    text = "".join(cell.data for cell in found).rstrip()
    if not text.strip():
        return ""
    x, y = _MARGIN + column * _CELL, _MARGIN + (row + 1) * _LINE - 5
    colour = _COLOURS.get(found[0].fg, _COLOURS["default"])
    bold = ' class="b"' if found[0].bold else ""
    return (
        f'<text x="{x:.1f}" y="{y}" textLength="{len(text) * _CELL:.1f}" fill="{colour}"{bold}>'
        f"{escape(text)}</text>"
    )
