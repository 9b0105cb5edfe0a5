"""Text from a box or a file, made fit for a terminal: nothing in it can be taken for a command to that.

Output of a person's own command is not text in this sense: it goes through byte for byte.
"""

from __future__ import annotations

import unicodedata

_LONGEST = 4096
# Control, format (such as marks that reverse the direction of reading), surrogate, private use, unassigned;
# separators of lines and paragraphs.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def shown(text: str | bytes, longest: int = _LONGEST) -> str:
    """Return a text in one line without control characters, at most `longest` characters and a mark."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    cut = text[:longest]
    made = "".join(_escaped(character) for character in cut)
    return made if len(cut) == len(text) else f"{made}[...]"


def _escaped(character: str) -> str:
    if character.isprintable() or unicodedata.category(character) not in _HIDDEN:
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"  # a byte that is no UTF-8
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
