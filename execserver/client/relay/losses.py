"""How long a relay's client waits before it replaces a lost WebSocket.  Without clocks and sockets."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 2.0
USEFUL_AFTER_S: Final = 1.0  # a WebSocket that lasted so long is replaced at once
_FREE: Final = 3


class Losses:
    """Counts the WebSockets in a row that were lost at once; `chance` returns random numbers from 0 to 1.

    A relay that accepts and drops everybody is asked ever less often.  A WebSocket that was lost at once but
    had brought a message of the executor costs one short pause, however many there are: on a bad line that is
    what progress looks like, and the relay cannot feign it.
    """

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._chance = chance
        self._in_a_row = 0

    def add(self, lasted_s: float, *, brought: bool) -> None:
        """Take the loss of a WebSocket that was there for `lasted_s`; `brought` if a message came by it."""
        if lasted_s >= USEFUL_AFTER_S:
            self._in_a_row = 0
        elif brought:
            self._in_a_row = min(self._in_a_row, _FREE) + 1
        else:
            self._in_a_row += 1

    def first_pause(self) -> float:
        """Return the seconds to wait before the first attempt, 0 after one of the first few losses."""
        beyond = self._in_a_row - _FREE
        return self._jittered(FIRST_PAUSE_S * 2 ** min(beyond, 16)) if beyond > 0 else 0.0

    def next_pause(self, attempt: int) -> float:
        """Return the seconds to wait behind the n-th attempt (from 0) that failed."""
        steps = max(self._in_a_row - _FREE, 0) + attempt
        return self._jittered(FIRST_PAUSE_S * 2 ** min(steps, 16))

    def _jittered(self, pause: float) -> float:
        return min(pause, LONGEST_PAUSE_S) * (0.5 + self._chance())
