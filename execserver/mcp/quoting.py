"""How a command is written in an approval prompt: one line that Bash would read as the same words.

The quoting is that of the shell tool contract, not that of `shlex.quote`: users who know the prompts of the
reference server find them unchanged.  Two things differ in a prompt, because a command chooses its words and
a user decides by them.  A word with anything invisible in it, or anything that moves what is visible, is
written as `$'...'` with escapes.  And the middle of a very long text is omitted, which is said outside of all
quotes.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from string import ascii_letters, digits

WORD_CHARACTERS = 2_000  # a longer word is cut
LINE_CHARACTERS = 8_000  # of a program with its arguments, as shown
_HEAD = 3 / 4  # the share of the beginning in what is shown of something too long

_BARE = frozenset(ascii_letters + digits + "+-./:@]_")
# What a quoted piece cannot contain.  A caret may be its first character: further in, Bash could take it for
# a history substitution.
_NOT_IN_SINGLE = frozenset("'\\^")
_NOT_IN_DOUBLE = frozenset("`$!^")
_ESCAPED = str.maketrans({'"': '\\"', "\\": "\\\\"})

# A prompt puts its own quotes, backticks, around the command.
_NOT_SHOWN = frozenset("`")
_SEEN = frozenset("LMNPS")  # letters, marks, numbers, punctuation, symbols
_RIGHT_TO_LEFT = frozenset(("R", "AL", "AN"))  # they turn the order of what is around them
# Letters, marks and symbols of Unicode that show nothing, or only a gap.
_UNSEEN = (
    *(range(0x34F, 0x350), range(0x115F, 0x1161), range(0x17B4, 0x17B6), range(0x180B, 0x1810)),
    *(range(0x2800, 0x2801), range(0x3164, 0x3165), range(0xFE00, 0xFE10), range(0xFFA0, 0xFFA1)),
    *(range(0x1D159, 0x1D15A), range(0x1D173, 0x1D17B), range(0xE0000, 0xE1000)),
)
_MOST_MARKS = 2  # on one letter; more would cover the lines above and below
_SHORT_ESCAPES = {"\a": "a", "\b": "b", "\t": "t", "\n": "n", "\v": "v", "\f": "f", "\r": "r", "\x1b": "e"}


def command_line(file: str, arguments: Sequence[str]) -> str:
    """Return a program as it was called with its arguments, quoted where needed."""
    return " ".join((file, *map(quote, arguments)))


def visible_line(file: str, arguments: Sequence[str]) -> str:
    """Return a program and its arguments for a prompt: everything visible, and cut where it is too long."""
    words = [file, *arguments]
    first, room = [], int(LINE_CHARACTERS * _HEAD)
    for word in words:
        first.append(quote_cut(word))
        room -= len(first[-1]) + 1
        if room < 0:
            break
    last: list[str] = []
    rest, room = words[len(first) :], LINE_CHARACTERS - int(LINE_CHARACTERS * _HEAD)
    while rest and room > 0:
        last.insert(0, quote_cut(rest.pop()))
        room -= len(last[0]) + 1
    if rest:
        first.append(f"[... {len(rest)} arguments with {sum(map(len, rest))} characters ...]")
    return " ".join((*first, *last))


def quote_cut(word: str) -> str:
    """Return one word, quoted; of a long one its beginning, the number of omitted characters, and its end.

    The number is outside of the quotes, where no word can put a blank or a bracket.
    """
    shown = quote_visibly(word) if len(word) <= WORD_CHARACTERS else _cut(word, WORD_CHARACTERS)
    # An escape takes up to ten characters.
    return shown if len(shown) <= 2 * WORD_CHARACTERS else _cut(word, WORD_CHARACTERS // 5)


def quote_visibly(word: str) -> str:
    """Return one word, quoted, or with escapes if not all of it would be visible.

    Bytes that are not UTF-8 come decoded with surrogateescape.
    """
    return quote(word) if _is_plain(word) else _with_escapes(word)


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


def _cut(word: str, most: int) -> str:
    head = int(most * _HEAD)
    tail = most - head
    return f"{quote_visibly(word[:head])}[... {len(word) - most} characters ...]{quote_visibly(word[-tail:])}"


def _is_plain(word: str) -> bool:
    """Return whether every character of a word looks like what it is."""
    if word.isascii():
        return word.isprintable() and _NOT_SHOWN.isdisjoint(word)
    return all(_shown_after(word, at) for at in range(len(word)))


def _shown_after(word: str, at: int) -> bool:
    """Return whether a character, behind those before it, looks like what it is."""
    character = word[at]
    if character.isascii():
        return character.isprintable() and character not in _NOT_SHOWN
    if unicodedata.category(character)[0] not in _SEEN or any(ord(character) in one for one in _UNSEEN):
        return False
    if unicodedata.bidirectional(character) in _RIGHT_TO_LEFT:
        return False
    return unicodedata.category(character)[0] != "M" or _sits_on_a_letter(word, at)


def _sits_on_a_letter(word: str, at: int) -> bool:
    """Return whether a combining mark changes a letter that is shown, and covers no more than that."""
    base = at - 1
    while base >= 0 and at - base <= _MOST_MARKS and unicodedata.category(word[base])[0] == "M":
        base -= 1
    if base < 0 or at - base > _MOST_MARKS or unicodedata.category(word[at]) == "Me":
        return False
    return word[base].isalpha() and _shown_after(word, base)


def _with_escapes(word: str) -> str:
    """Return a word in `$'...'`, the quotes in which Bash reads escapes."""
    return "$'" + "".join(_escaped(word, at) for at in range(len(word))) + "'"


def _escaped(word: str, at: int) -> str:
    character = word[at]
    if character in "'\\":
        return "\\" + character
    if _shown_after(word, at):
        return character
    if character in _SHORT_ESCAPES:
        return "\\" + _SHORT_ESCAPES[character]
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:
        number -= 0xDC00  # a byte that is not UTF-8
    elif number > 0xFFFF:
        return f"\\U{number:08x}"
    elif number > 0x7F:
        return f"\\u{number:04x}"
    # Always three octal digits, so that a following digit is no part of the escape.
    return f"\\{number:03o}"


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
