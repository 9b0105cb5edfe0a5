"""Gives memory back when there is nothing to do.

What ends is freed at once, but not all of it goes back to the system: the C library keeps free blocks that
lie between others, and a few libraries leave cycles.  A look every few seconds tells from the processor time
used whether the server is idle and has worked since the last time; then, and only then, garbage is collected
and free pages are given back.  No request pays for it, except one that arrives in just these milliseconds.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

from gevent.hub import get_hub

LOOK_S = 5.0
_BUSY_SHARE = 0.02  # of one processor, from which on the server is not idle
_WORTH_S = 0.2  # of processor time since the last time; less leaves nothing worth mentioning
_APART_S = 20.0  # a server with little to do again and again is not tidied each time


class IdleMemory:
    """Collects garbage and calls `trim` when the process is idle; from `start` to `close`."""

    def __init__(self, trim: Callable[[], object]) -> None:
        self._trim = trim
        self._timer = get_hub().loop.timer(LOOK_S, LOOK_S, ref=False)
        self._seen = 0.0
        self._tidied = 0.0
        self._next_at = 0.0

    def start(self) -> None:
        """Begin to look; what was used so far does not count."""
        self._seen = self._tidied = time.process_time()
        self._timer.start(self.look)

    def close(self) -> None:
        """Look no more."""
        self._timer.stop()

    def look(self) -> None:
        """Tidy up, if the process did next to nothing since the last look and much since the last time."""
        used = time.process_time()
        is_busy = used - self._seen > _BUSY_SHARE * LOOK_S
        self._seen = used
        if is_busy or used - self._tidied < _WORTH_S or time.monotonic() < self._next_at:
            return
        gc.collect()
        self._trim()
        self._seen = self._tidied = time.process_time()
        self._next_at = time.monotonic() + _APART_S
