"""How long to wait before the next attempt to connect: 1, 2, 4, 8, 16, 30, 30 ... s, each cut at random.

The series starts anew after a connection that was of use.  One that ends before it was costs a further step,
so that an address which accepts and drops everybody is not asked every second.
"""

from __future__ import annotations

import random
from collections.abc import Callable

FIRST_S = 1.0
LONGEST_S = 30.0
USEFUL_AFTER_S = 30.0


class Backoff:
    """The series; `chance` returns numbers from 0 to 1."""

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._chance = chance
        self._step = 0

    def next_pause(self) -> float:
        """Return the next pause in seconds: the step, less up to a half of it."""
        pause = min(FIRST_S * 2.0**self._step, LONGEST_S)
        self._step = min(self._step + 1, 10)
        return pause * (0.5 + self._chance() / 2)

    def was_useful(self) -> None:
        """Start anew."""
        self._step = 0
