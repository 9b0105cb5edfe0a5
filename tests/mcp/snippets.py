"""Rules files of a few lines: what the reference (0.97.0) takes, and what it says about the others.

Of a message the line that begins with `error: ` and its place are in the file.  Where the reference shows a
rule, ours shows it as a rules file spells it; `shown_alike` makes both the same.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

_FILE = Path(__file__).with_name("rules_snippets.jsonl")
_SHOWN_RULES = re.compile(r"rules: \[.*\]; unmatched|match rule `.*`: ", re.DOTALL)


class Snippet(NamedTuple):
    """A source and what is said about it: the message (None: it is taken), and `line:column`."""

    source: str
    message: str | None = None
    place: str = ""


def snippets() -> list[Snippet]:
    """Return all of them."""
    return [Snippet(**json.loads(line)) for line in _FILE.read_text().splitlines()]


def shown_alike(message: str) -> str:
    """Return a message without the rules it shows."""
    return _SHOWN_RULES.sub("...", message)
