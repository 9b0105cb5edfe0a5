"""Splits an example of a rules file into words, as a POSIX shell would without any expansion."""

from __future__ import annotations

_ESCAPABLE = ('"', "\\", "$", "`", "\n")  # between double quotes


class BadShellSyntax(Exception):
    """A quote is not closed, or nothing follows a backslash."""


def split_words(text: str) -> list[str]:
    """Return the words of a text; `#` at the beginning of a word starts a comment.  Raises BadShellSyntax."""
    words = []
    place = 0
    while place < len(text):
        if text[place] in " \t\n":
            place += 1
        elif text[place] == "#":
            place = (text.find("\n", place) + 1) or len(text)
        elif text.startswith("\\\n", place):
            place += 2
        else:
            word, place = _word(text, place)
            words.append(word)
    return words


def _word(text: str, place: int) -> tuple[str, int]:
    pieces = []
    while place < len(text) and text[place] not in " \t\n":
        read = _READERS.get(text[place])
        piece, place = read(text, place + 1) if read else (text[place], place + 1)
        pieces.append(piece)
    return "".join(pieces), place


def _escaped(text: str, place: int) -> tuple[str, int]:
    if place == len(text):
        raise BadShellSyntax
    return ("" if text[place] == "\n" else text[place]), place + 1


def _single_quoted(text: str, place: int) -> tuple[str, int]:
    end = text.find("'", place)
    if end < 0:
        raise BadShellSyntax
    return text[place:end], end + 1


def _double_quoted(text: str, place: int) -> tuple[str, int]:
    pieces: list[str] = []
    while place < len(text):
        char, place = text[place], place + 1
        if char == '"':
            return "".join(pieces), place
        if char == "\\" and text.startswith(_ESCAPABLE, place):
            char, place = _escaped(text, place)
        pieces.append(char)
    raise BadShellSyntax


_READERS = {"\\": _escaped, "'": _single_quoted, '"': _double_quoted}
