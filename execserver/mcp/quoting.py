"""How a command is written in a question: one line that a POSIX shell would read as the same words.

The quoting is that of the shell tool contract, section 7, which is not that of `shlex.quote`: people who
know the reference's prompts find theirs unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters, digits

_BARE = frozenset(ascii_letters + digits + "+-./:@]_")
# What a piece in quotes cannot hold.  A caret may stand at its beginning: further in, Bash could take it for
# a substitution of its history.
_NOT_IN_SINGLE = frozenset("'\\^")
_NOT_IN_DOUBLE = frozenset("`$!^")
_ESCAPED = str.maketrans({'"': '\\"', "\\": "\\\\"})


def command_line(file: str, arguments: Sequence[str]) -> str:
    """Return a program as it was called and its arguments, quoted where needed."""
    return " ".join((file, *map(quote, arguments)))


def quote(word: str) -> str:
    """Return one word, cut from the left into the longest pieces that one style of quotes can hold."""
    if not word:
        return "''"
    pieces = []
    start = 0
    while start < len(word):
        piece, end = _piece(word, start)
        pieces.append(piece)
        start = end
    return "".join(pieces)


def _piece(word: str, start: int) -> tuple[str, int]:
    """Return the piece that begins at `start`, quoted, and where it ends."""
    first = word[start]
    bare = first in _BARE
    single = first == "^" or first not in _NOT_IN_SINGLE
    double = first != "^" and first not in _NOT_IN_DOUBLE
    end = start + 1
    while end < len(word):
        character = word[end]
        fits = (
            bare and character in _BARE,
            single and character not in _NOT_IN_SINGLE,
            double and character not in _NOT_IN_DOUBLE,
        )
        if not any(fits):
            break
        bare, single, double = fits
        end += 1
    piece = word[start:end]
    if bare:
        return piece, end
    if single:
        return f"'{piece}'", end
    return f'"{piece.translate(_ESCAPED)}"', end
