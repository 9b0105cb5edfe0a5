"""Ephemeral keys that are made before somebody waits for them.

Making a pair takes a third of the time of answering a handshake, and needs nothing of it.  Each pair is given
out once and to one handshake only; one that has lain for `KEPT_S` is thrown away, which clears it.  Bound:
`KEPT_PAIRS`; whoever comes when there are none has his made at once.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from gevent.hub import get_hub

from execserver.wire.noise import SystemEntropy
from execserver.wire.noise_keys import StaticKeys

KEPT_PAIRS = 4
KEPT_S = 300.0
_PAUSE_S = 0.005  # before each pair, so that the handshake which took one goes on first


class _Pair(NamedTuple):
    keys: StaticKeys
    until: float


class PreparedKeys(SystemEntropy):
    """The chance of an executor's handshakes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pairs: deque[_Pair] = deque()
        self._timer = get_hub().loop.timer(_PAUSE_S, _PAUSE_S)
        self._is_due = False

    @property
    def count(self) -> int:
        """How many pairs are ready."""
        return len(self._pairs)

    def prepare(self) -> None:
        """Make pairs soon, up to the bound."""
        if not self._is_due and len(self._pairs) < KEPT_PAIRS:
            self._is_due = True
            self._timer.again(self._make_one)

    def ephemeral(self) -> StaticKeys:
        """Return a fresh pair of keys, and prepare others."""
        now = self._clock()
        while self._pairs and self._pairs[0].until <= now:
            self._pairs.popleft()
        keys = self._pairs.popleft().keys if self._pairs else super().ephemeral()
        self.prepare()
        return keys

    def clear(self) -> None:
        """Throw away what is ready, and prepare nothing further until asked to."""
        self._timer.stop()
        self._is_due = False
        self._pairs.clear()

    def _make_one(self) -> None:
        self._timer.stop()
        self._is_due = False
        self._pairs.append(_Pair(super().ephemeral(), self._clock() + KEPT_S))
        self.prepare()
