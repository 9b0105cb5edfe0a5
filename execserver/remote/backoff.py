"""The pauses between attempts to connect: 1, 2, 4, 8, 16, 30, 30 ... s, each shortened at random.

The series starts again after a useful connection.  A connection that ends before it was useful costs a
further step, so that an address that accepts and drops every connection is not tried every second.
"""

from __future__ import annotations

import random
from collections.abc import Callable

REGISTRATION_FIRST_S = 0.5
REGISTRATION_LONGEST_S = 5.0
FIRST_S = 1.0
LONGEST_S = 30.0
USEFUL_AFTER_S = 30.0


class Backoff:
    """The series; `chance` returns random numbers from 0 to 1."""

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._chance = chance
        self._step = 0

    def next_pause(self) -> float:
        """Return the next pause in seconds: the step, less up to a half of it."""
        pause = min(FIRST_S * 2.0**self._step, LONGEST_S)
        self._step = min(self._step + 1, 10)
        # At random, so that the executors of a relay that has restarted do not all come at once.
        return pause * (0.5 + self._chance() / 2)

    def was_useful(self) -> None:
        """Start the series again: the connection was useful."""
        self._step = 0


def registration_pause(attempt: int, chance: Callable[[], float] = random.random) -> float:
    """Return the pause in seconds behind the n-th registration (from 0) that was to be tried again.

    The contract's: 0.5, 1, 2, 4, 5, 5 ... s and up to a half more at random.
    """
    return min(REGISTRATION_FIRST_S * 2.0 ** min(attempt, 10), REGISTRATION_LONGEST_S) * (1 + chance() / 2)
