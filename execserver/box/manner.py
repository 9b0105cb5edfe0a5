"""How a conversation with a process is held, how it ended, and whether a terminal is here."""

from __future__ import annotations

import enum
import os
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from execserver.box.terminal import Terminal
    from execserver.protocol.resource_limits import ProcessEnd

LOST: Final = 255
"""The exit status when the end of the command is not known, as ssh has it."""


class Predict(enum.Enum):
    """Whether keys show at once, before the box has answered: on slow links by themselves."""

    ADAPTIVE = "adaptive"
    ALWAYS = "always"
    NEVER = "never"


class Ending(NamedTuple):
    """How it ended: the exit status for the caller, and what to tell the person, if anything.

    `ended` is the box's word why the command did not exit by itself; `is_over`: it has ended, and not only
    this end of it.
    """

    status: int
    note: str = ""
    detached: bool = False
    ended: ProcessEnd | None = None
    is_over: bool = False


class Manner(NamedTuple):
    """How to talk: the terminal here, if its keys go there; whether the process has
    one; the keys that are for the client; what signals do.

    `hangs_up`: SIGTERM and SIGHUP end the conversation, since a login shell ignores the first.  `repaints`:
    have a program on the terminal draw its screen again.
    """

    name: str
    terminal: Terminal | None = None
    tty: bool = False
    takes_input: bool = True
    escapes: bool = False
    can_detach: bool = False
    hangs_up: bool = False
    repaints: bool = False
    predict: Predict = Predict.NEVER


def both_ends() -> bool:
    """Return whether standard input and output are terminals."""
    return os.isatty(0) and os.isatty(1)
