"""Gives memory back when there is nothing to do.

What ends is freed at once, but not all of it goes back to the system: the C library keeps free blocks that
lie between others, and a few libraries leave cycles.  A look every few seconds tells from the processor time
used whether the server is idle and has worked since the last time; then, and only then, garbage is collected
and free pages are given back.  It is done once more when what the work left for a while has ended too:
sessions to be resumed, output of ended processes.  No request pays for it, except one that arrives then.
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
_RETAINED_S = 35.0  # sessions and ended processes are kept for 30 s by default, and their end is no work


class IdleMemory:
    """Collects garbage and calls `trim` when the process is idle; from `start` to `close`."""

    def __init__(self, trim: Callable[[], object]) -> None:
        self._trim = trim
        self._timer = get_hub().loop.timer(LOOK_S, LOOK_S, ref=False)
        self._seen = 0.0
        self._tidied = 0.0
        self._next_at = 0.0
        self._again_at: float | None = None

    def start(self) -> None:
        """Begin to look; what was used so far does not count."""
        self._seen = self._tidied = time.process_time()
        self._timer.start(self.look)

    def close(self) -> None:
        """Look no more."""
        self._timer.stop()

    def look(self) -> None:
        """Tidy up, if the process did next to nothing since the last look and there is a reason to."""
        used, now = time.process_time(), time.monotonic()
        is_busy = used - self._seen > _BUSY_SHARE * LOOK_S
        self._seen = used
        if is_busy or now < self._next_at:
            return
        if used - self._tidied >= _WORTH_S:
            self._again_at = now + _RETAINED_S
        elif self._again_at is not None and now >= self._again_at:
            self._again_at = None
        else:
            return
        gc.collect()
        self._trim()
        self._seen = self._tidied = time.process_time()
        self._next_at = now + _APART_S
