"""The pauses between attempts to connect: 1, 2, 4, 8, 16, 30, 30 ... s, each shortened at random.

The series starts again after a useful connection: one that lasted, or that a harness has used.  Any other
costs a further step, so that an address that accepts and drops every connection is not tried every second.
Nor is one that drops everybody as soon as a harness has come: of short connections in a row only the first
few are useful.

A relay that says goodbye (close code 1001) has another one take over: that pause is 50 to 250 ms, a few times
in a row.
"""

from __future__ import annotations

import random
from collections.abc import Callable

REGISTRATION_FIRST_S = 0.5
REGISTRATION_LONGEST_S = 5.0
FIRST_S = 1.0
LONGEST_S = 30.0
USEFUL_AFTER_S = 30.0
_MOST_STEPS_IF_USED = 3  # up to 8 s: somebody has use for the connection, even if it does not last
AWAY_S = (0.05, 0.25)  # at random in between, since a node that drains sends many away
AWAY_IN_A_ROW = 3
SHORT_IN_A_ROW = 4  # some relays end the executor's connection together with a harness's


class Backoff:
    """The series; `chance` returns random numbers from 0 to 1."""

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._chance = chance
        self._step = 0
        self._short = 0
        self._away = 0

    def next_pause(self, *, sent_away: bool = False) -> float:
        """Return the next pause in seconds: the step, less up to a half of it; a moment if `sent_away`."""
        if sent_away and self._step == 0 and self._away < AWAY_IN_A_ROW:
            self._away += 1
            shortest, longest = AWAY_S
            return shortest + (longest - shortest) * self._chance()
        pause = min(FIRST_S * 2.0**self._step, LONGEST_S)
        self._step = min(self._step + 1, 10)
        # At random, so that the executors of a relay that has restarted do not all come at once.
        return pause * (0.5 + self._chance() / 2)

    def ended(self, lasted_s: float, *, was_used: bool) -> None:
        """Take the end of a connection: how long it was there, and whether a harness has sent anything."""
        if lasted_s >= USEFUL_AFTER_S:
            self._step = self._short = self._away = 0
        elif was_used:
            self._short += 1
            self._step = min(max(self._short - SHORT_IN_A_ROW, 0), _MOST_STEPS_IF_USED)


def registration_pause(attempt: int, chance: Callable[[], float] = random.random) -> float:
    """Return the pause in seconds behind the n-th registration (from 0) that was to be tried again.

    The contract's: 0.5, 1, 2, 4, 5, 5 ... s and up to a half more at random.
    """
    return min(REGISTRATION_FIRST_S * 2.0 ** min(attempt, 10), REGISTRATION_LONGEST_S) * (1 + chance() / 2)
