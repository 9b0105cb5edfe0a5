"""Returns memory to the system when there is nothing to do.

What ends is freed at once, but not all of it goes back to the system: the C library keeps free blocks that
lie between used ones, and a few libraries leave reference cycles.  Every few seconds a look at the processor
time tells whether the server is idle and has worked since the last time.  Only then is garbage collected and
are free pages returned.  That happens once more when also the things have ended that work leaves for a while:
sessions that can be resumed, output of ended processes.  No request is delayed, except one that arrives just
then.

The C library also keeps the buffers of large requests, for the next ones.  When much is kept, it is returned
at the next look, also by a busy server: mapping it anew costs a hundredth of the time between looks at most.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

from gevent.hub import get_hub

LOOK_S = 5.0
_BUSY_SHARE = 0.02  # of one processor; a server that uses more is not idle
_WORTH_S = 0.2  # processor time since the last time; after less work there is little to free
_APART_S = 20.0  # at least between two times, for a server with a little work again and again
_MUCH_KEPT = 16 * 1024 * 1024  # bytes more than after the last time
_RETAINED_S = 35.0  # sessions and ended processes are kept for 30 s; their end takes hardly any time


class IdleMemory:
    """Collects garbage and calls `trim` when the process is idle, from `start` to `close`.

    `kept` returns the bytes that the C library keeps free, None where it cannot say.
    """

    def __init__(self, trim: Callable[[], object], kept: Callable[[], int | None] = lambda: None) -> None:
        self._trim = trim
        self._kept = kept
        self._left = 0  # of what is kept, after the last time: pages that are returned count still
        self._timer = get_hub().loop.timer(LOOK_S, LOOK_S, ref=False)
        self._seen = 0.0
        self._tidied = 0.0
        self._next_at = 0.0
        self._again_at: float | None = None

    def start(self) -> None:
        """Start looking; the processor time used so far does not count."""
        self._seen = self._tidied = time.process_time()
        self._timer.start(self.look)

    def close(self) -> None:
        """Stop looking."""
        self._timer.stop()

    def look(self) -> None:
        """Return what is kept above the bound, and free more if the process is idle and has worked before."""
        used, now = time.process_time(), time.monotonic()
        self._return_much()
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
        self._left = self._kept() or 0
        self._seen = self._tidied = time.process_time()
        self._next_at = now + _APART_S

    def _return_much(self) -> None:
        kept = self._kept() or 0
        if kept - self._left >= _MUCH_KEPT:
            self._trim()
            self._left = self._kept() or 0
        else:
            self._left = min(self._left, kept)
