"""How a command is written in a question: one line that Bash would read as the same words.

The quoting is that of the shell tool contract, section 7, which is not that of `shlex.quote`: people who
know the reference's prompts find theirs unchanged.  Two things differ in a question, because a command
chooses its words and a person decides by them: a word with anything in it that is not seen, or that moves
what is seen, stands as `$'...'` with escapes; and of a very long text the middle is left out, which is said
outside of all quotes.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from string import ascii_letters, digits

WORD_CHARACTERS = 2_000  # a longer word is cut
LINE_CHARACTERS = 8_000  # of a program with its arguments, as they are shown
_HEAD = 3 / 4  # of what is shown of something too long, its beginning

_BARE = frozenset(ascii_letters + digits + "+-./:@]_")
# What a piece in quotes cannot hold.  A caret may stand at its beginning: further in, Bash could take it for
# a substitution of its history.
_NOT_IN_SINGLE = frozenset("'\\^")
_NOT_IN_DOUBLE = frozenset("`$!^")
_ESCAPED = str.maketrans({'"': '\\"', "\\": "\\\\"})

# A question's own quotes are backticks.
_NOT_SHOWN = frozenset("`")
_SEEN = frozenset("LMNPS")  # letters, marks, numbers, punctuation, symbols
_RIGHT_TO_LEFT = frozenset(("R", "AL", "AN"))  # which turn the order of what stands around them
# Letters, marks and symbols of Unicode that leave nothing, or a mere gap.
_UNSEEN = (
    *(range(0x34F, 0x350), range(0x115F, 0x1161), range(0x17B4, 0x17B6), range(0x180B, 0x1810)),
    *(range(0x2800, 0x2801), range(0x3164, 0x3165), range(0xFE00, 0xFE10), range(0xFFA0, 0xFFA1)),
    *(range(0x1D159, 0x1D15A), range(0x1D173, 0x1D17B), range(0xE0000, 0xE1000)),
)
_MOST_MARKS = 2  # on one letter; more climb over the lines around
_SHORT_ESCAPES = {"\a": "a", "\b": "b", "\t": "t", "\n": "n", "\v": "v", "\f": "f", "\r": "r", "\x1b": "e"}


def command_line(file: str, arguments: Sequence[str]) -> str:
    """Return a program as it was called and its arguments, quoted where needed."""
    return " ".join((file, *map(quote, arguments)))


def visible_line(file: str, arguments: Sequence[str]) -> str:
    """Return a program and its arguments for a question: all is visible, and cut where it is too long."""
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
    """Return one word, quoted; of one that is too long the beginning, the number of the rest, and the end.

    The number stands outside of the quotes, where no word can put a blank or a bracket.
    """
    shown = quote_visibly(word) if len(word) <= WORD_CHARACTERS else _cut(word, WORD_CHARACTERS)
    # An escape takes up to ten characters.
    return shown if len(shown) <= 2 * WORD_CHARACTERS else _cut(word, WORD_CHARACTERS // 5)


def quote_visibly(word: str) -> str:
    """Return one word, quoted, or with escapes where not all of it would be seen.

    Bytes that are no text come decoded with surrogateescape.
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
    """Tell whether all of a word is seen as what it is."""
    if word.isascii():
        return word.isprintable() and _NOT_SHOWN.isdisjoint(word)
    return all(_shown_after(word, at) for at in range(len(word)))


def _shown_after(word: str, at: int) -> bool:
    """Tell whether a character, behind those before it, is seen as what it is."""
    character = word[at]
    if character.isascii():
        return character.isprintable() and character not in _NOT_SHOWN
    if unicodedata.category(character)[0] not in _SEEN or any(ord(character) in one for one in _UNSEEN):
        return False
    if unicodedata.bidirectional(character) in _RIGHT_TO_LEFT:
        return False
    return unicodedata.category(character)[0] != "M" or _sits_on_a_letter(word, at)


def _sits_on_a_letter(word: str, at: int) -> bool:
    """Tell whether a mark changes a letter that is shown, and does not climb over more than that."""
    base = at - 1
    while base >= 0 and at - base <= _MOST_MARKS and unicodedata.category(word[base])[0] == "M":
        base -= 1
    if base < 0 or at - base > _MOST_MARKS or unicodedata.category(word[at]) == "Me":
        return False
    return word[base].isalpha() and _shown_after(word, base)


def _with_escapes(word: str) -> str:
    """Return a word in the quotes in which Bash reads escapes."""
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
        number -= 0xDC00  # a byte that is no text
    elif number > 0xFFFF:
        return f"\\U{number:08x}"
    elif number > 0x7F:
        return f"\\u{number:04x}"
    # Three octal digits: what comes behind can be no part of them.
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
