"""The keys that are for the client: `~` at the beginning of a line and one more, as ssh has them.  Pure."""

from __future__ import annotations

import enum
from typing import Final

_TILDE: Final = ord("~")
_LINE_ENDS: Final = frozenset(b"\r\n")


class Asked(enum.Enum):
    """What a person asks the client for."""

    END = ord(".")
    DETACH = ord("d")
    HELP = ord("?")


_ASKED: Final = {asked.value: asked for asked in Asked}


class Escapes:
    """Takes the escapes out of what is typed; the state between two pieces is all it keeps."""

    def __init__(self) -> None:
        self._at_start = True
        self._held = False

    def feed(self, typed: bytes) -> tuple[bytes, list[Asked]]:
        """Return what goes to the box, and what is asked of the client, in order."""
        if not self._held and not self._at_start and _TILDE not in typed:
            self._at_start = bool(typed) and typed[-1] in _LINE_ENDS
            return typed, []
        sent, asked = bytearray(), []
        for key in typed:
            if self._held:
                self._held = False
                if key in _ASKED:
                    asked.append(_ASKED[key])
                    self._at_start = True
                    continue
                sent += b"" if key == _TILDE else b"~"
            elif key == _TILDE and self._at_start:
                self._held = True
                continue
            sent.append(key)
            self._at_start = key in _LINE_ENDS
        return bytes(sent), asked
