"""Old output for a terminal, without its queries: where is the cursor, which colours have you, what are you?

The terminal would answer them, and the answer would be typed: whoever has asked is long past it.  No I/O.
"""

from __future__ import annotations

import re
from typing import Final

_MOST_HELD: Final = 4096  # bytes; a longer beginning of a sequence is none that is known here
_QUERY: Final = re.compile(
    rb"\x05|\x1bZ"
    rb"|\x1b\[(?:[>=]?[0-9;]*c|\??[0-9;]*n|[0-9;]*x|>[0-9;]*q|\?[0-9;]*u)"
    rb"|\x1b\[(?:1[1345689]|2[01])(?:;[0-9]*)*t"  # of the window; 22 and 23 keep its title
    rb"|\x1b\[(?:\??[0-9;]*\$p|[0-9;]*(?:\$w|\*y))"
    rb"|\x1b\][0-9]+;(?:[^\x07\x1b]*;)?\?(?:\x07|\x1b\\)"
    rb"|\x1bP[+$]q[^\x1b]*\x1b\\"
)
_BEGUN: Final = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]*\x1b?|P[^\x1b]*\x1b?)?\Z")


class Past:
    """Takes queries out of pieces of output; holds what may be the beginning of one."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Return what of this, and of what was held, can be shown."""
        data = _QUERY.sub(b"", self._held + data)
        begun = _BEGUN.search(data, max(0, len(data) - _MOST_HELD))
        end = len(data) if begun is None else begun.start()
        self._held = data[end:]
        return data[:end]

    def rest(self) -> bytes:
        """Return what is held: nothing old follows."""
        held, self._held = self._held, b""
        return held
