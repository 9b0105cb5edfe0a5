"""What is wrong with a TOML text, and where, as the newest reference server says it where that is known."""

from __future__ import annotations

import re

_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_BARE = re.compile(r"[^\s,\]}#]*")
_UNQUOTED = "string values must be quoted, expected literal string"


class TomlFault:
    """The place and the reason of a fault."""

    def __init__(self, text: str, message: str) -> None:
        """Take the text and what Python's parser says about it."""
        found = _PLACE.search(message)
        self._lines = text.split("\n")
        if found is not None and found[1]:
            self.line, self.column = int(found[1]), int(found[2])
        else:
            self.line, self.column = len(self._lines), len(self._lines[-1]) + 1
        reason = message if found is None else message[: found.start()]
        self.reason = _UNQUOTED if reason == "Invalid value" else reason[:1].lower() + reason[1:]

    def short(self) -> str:
        """Return line, column and reason."""
        return f"{self.line}:{self.column}: {self.reason}"

    def with_snippet(self) -> str:
        """Return place, line and reason as several lines of text."""
        line = self._lines[self.line - 1] if self.line <= len(self._lines) else ""
        margin = " " * len(str(self.line))
        found = _BARE.match(line, self.column - 1)
        marked = "^" * max(1, len(found[0]) if found else 1)
        return (
            f"TOML parse error at line {self.line}, column {self.column}\n{margin} |\n{self.line} | {line}\n"
            f"{margin} | {' ' * (self.column - 1)}{marked}\n{self.reason}\n"
        )
