"""Questions to the person behind the client (shell tool contract, section 7).

`Question` and `Answer` are what a call asks with; `Ask` is how.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple


class Question(NamedTuple):
    """A program that wants to run: its absolute path, its whole argv, and its working directory.

    The texts are decoded with surrogateescape.
    """

    file: str
    argv: list[str]
    workdir: str


class Answer(enum.Enum):
    """What was answered.  FAILED: an error, a word that is no answer, or nobody left to ask."""

    ACCEPT = "accept"
    DECLINE = "decline"
    CANCEL = "cancel"
    FAILED = "failed"


# Blocks the greenlet until there is an answer.  Killing the greenlet withdraws the question.
Ask = Callable[[Question], Answer]
