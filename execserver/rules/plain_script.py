"""Plain shell scripts: only commands of plain words, joined by `&&`, `||`, `;`, `|` or newlines.

A script with anything else in it (expansions, redirections, parentheses, comments, background jobs,
assignments, keywords where a command begins) is not plain, and not examined.
"""

from __future__ import annotations

_BLANKS = " \t"
_ENDS_WORD = " \t\n;|&"
_REFUSED = "$`()<>"
_ESCAPABLE = ('"', "\\", "$", "`", "\n")  # between double quotes

# First words that begin something other than a command.
_KEYWORDS = frozenset(
    (
        *("if", "then", "elif", "else", "fi", "for", "while", "until", "do", "done", "case", "esac"),
        *("select", "function", "coproc", "!", "{", "[", "[[", "]]"),
        *("declare", "typeset", "export", "readonly", "local", "unset", "unsetenv"),
    )
)


class _NotPlain(Exception):
    """The script contains something that makes it not plain."""


def plain_commands(script: str) -> list[list[str]] | None:
    """Return the commands of a script as lists of words without their quotes; None if it is not plain.

    Reads the script once, from left to right.
    """
    try:
        return _Reader(script).commands()
    except _NotPlain:
        return None


class _Reader:
    """Reads one script; `_place` is the position of the next character, `_words` the command so far."""

    def __init__(self, script: str) -> None:
        self._script = script
        self._place = 0
        self._words: list[str] = []
        self._commands: list[list[str]] = []
        self._wanted = False  # a joiner (`&&`, `||`, `|`) came last: a command must follow

    def commands(self) -> list[list[str]]:
        """Return all commands.  Raises _NotPlain."""
        while self._place < len(self._script):
            char = self._script[self._place]
            if char in _BLANKS or self._script.startswith("\\\n", self._place):
                self._place += 1 if char in _BLANKS else 2
            elif char in "\n;|&":
                self._end_command(self._separator(char))
            elif char == "#":
                raise _NotPlain
            else:
                self._take_word()
        self._end_command("\n")
        if self._wanted:
            raise _NotPlain
        return self._commands

    def _separator(self, char: str) -> str:
        """Read the separator that ends a command, and return it."""
        double = char + char
        found = double if char in "|&" and self._script.startswith(double, self._place) else char
        self._place += len(found)
        if found == "&":
            raise _NotPlain
        return found

    def _end_command(self, separator: str) -> None:
        if self._words:
            self._commands.append(self._words)
            self._words = []
            self._wanted = separator not in (";", "\n")
        elif separator != "\n":
            raise _NotPlain

    def _take_word(self) -> None:
        start = self._place
        pieces = []
        while self._place < len(self._script) and self._script[self._place] not in _ENDS_WORD:
            pieces.append(self._piece())
        word = "".join(pieces)
        # To the shell, a quoted word is neither a keyword nor an assignment.
        if not self._words and self._script[start] not in "'\"\\":
            name, is_assignment, _ = word.partition("=")
            if word in _KEYWORDS or (is_assignment and name.rstrip("+").isidentifier()):
                raise _NotPlain
        self._words.append(word)

    def _piece(self) -> str:
        """Read one character, or a quoted string, and return its value."""
        char = self._script[self._place]
        self._place += 1
        if char in _REFUSED:
            raise _NotPlain
        if char == "'":
            return self._until("'")
        if char == '"':
            return self._in_double_quotes()
        return self._escaped() if char == "\\" else char

    def _until(self, quote: str) -> str:
        start = self._place
        end = self._script.find(quote, start)
        if end < 0:
            raise _NotPlain
        self._place = end + 1
        return self._script[start:end]

    def _escaped(self) -> str:
        char = self._script[self._place : self._place + 1]
        self._place += 1
        return "" if char == "\n" else char

    def _in_double_quotes(self) -> str:
        pieces: list[str] = []
        while True:
            char = self._script[self._place : self._place + 1]
            self._place += 1
            if char in ("", "$", "`"):
                raise _NotPlain
            if char == '"':
                return "".join(pieces)
            following = self._script[self._place : self._place + 1]
            if char == "\\" and following in _ESCAPABLE:
                char = self._escaped()
            pieces.append(char)
