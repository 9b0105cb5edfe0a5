"""How this process was started: the words with which it, or another file, can be started again."""

from __future__ import annotations

import sys
from typing import NamedTuple

_WITH_VALUE = ("-m", "-X", "-W")  # options of the interpreter with a word of their own


class OwnStart(NamedTuple):
    """The file of this program, the words before its arguments, and these.

    From source the file is the interpreter.  `lock` is the descriptor that keeps the unpacked tree, if there
    is one.
    """

    file: str
    words: list[str]
    arguments: list[str]
    lock: int | None


def own_start() -> OwnStart:
    """Return how this process was started."""
    words = sys.orig_argv
    frozen: tuple[str, ...] = getattr(sys, "frozen", ())
    if frozen:
        # SCRIPT LOCK SELF NAME ARGUMENTS: see tools/freeze/boot.py.
        at = words.index(frozen[-4])
        lock = int(words[at + 1])
        return OwnStart(words[at + 2], [words[at + 3]], words[at + 4 :], lock if lock >= 0 else None)
    at = 1
    while at < len(words) and words[at].startswith("-"):
        has_module = words[at] == "-m"
        at += 2 if words[at] in _WITH_VALUE else 1
        if has_module:
            return OwnStart(sys.executable, words[:at], words[at:], None)
    return OwnStart(sys.executable, words[: at + 1], words[at + 1 :], None)
