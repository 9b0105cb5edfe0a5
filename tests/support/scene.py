"""What surrounds a transcript: values, stage directions, and what may vary by timing.

A `Scene` is made by `tests.support.scenes`; a replay asks it what to do at which line.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from tests.support.peer import Peer

if TYPE_CHECKING:
    from tests.support.replay import Replay


class Stage(Protocol):
    """What a replay plays on: a server and the way to it."""

    def open(self, conn: str) -> Peer:
        """Open the connection of this name."""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server."""


Hook = Callable[["Replay"], None]


@dataclass
class Scene:
    """What a transcript takes for granted: values, stage directions, and what may vary by timing."""

    values: dict[str, str] = field(default_factory=dict)
    before: dict[str, Hook] = field(default_factory=dict)
    """Request key -> what to do before it is sent."""
    at_note: dict[str, Hook] = field(default_factory=dict)
    """Beginning of a note -> what the note says happened there."""
    binary: dict[str, bytes] = field(default_factory=dict)
    """Recorded text of a binary message -> its bytes, where they were no UTF-8."""
    cuts: dict[str, str] = field(default_factory=dict)
    """Recorded text that was cut short -> the whole text."""
    before_end: dict[str, Hook] = field(default_factory=dict)
    """Connections whose recorded end has a cause that is no JSON message -> that cause."""
    client_closes: dict[str, Hook] = field(default_factory=dict)
    """Connections whose recorded end was the client's doing -> how it is done."""
    varying: dict[str, Callable[[bytes], bool]] = field(default_factory=dict)
    """`connection:process` whose output depends on timing -> a check of all its bytes."""
    normalise: Callable[[bytes], bytes] = bytes
    """Applied to live output before it is compared."""
    racy: frozenset[str] = frozenset()
    """Requests that may be answered just before or just after the process exited or closed."""
