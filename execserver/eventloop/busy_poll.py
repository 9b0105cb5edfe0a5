"""Look for the next request again and again for a moment, in place of sleeping until it comes.

A program that asks one question after the other sends the next some tens of microseconds after it has its
answer.  A process that has gone to sleep is woken up for it, and so is its processor: together that takes
longer than to answer.  So after two requests that close to each other the event loop keeps looking, at most
`limit_s` long for each answer.  It gives the processor to whoever wants it, and to all else in the loop.
After a pause it sleeps, as between the keys of a person, and always on a machine with one processor, where
the one that asks could not run meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter

from gevent.hub import get_hub


class BusyPoll:
    """Keeps this thread's event loop awake between requests that follow each other closely.

    `limit_s`: seconds to the next request, for which it stays awake; 0: never.  `clock` counts seconds.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float] = perf_counter) -> None:
        self._limit_s = limit_s if (os.cpu_count() or 1) > 1 else 0.0
        self._clock = clock
        # The loop calls an idle watcher when nothing else is to do, and does not sleep while one is active.
        self._idle = get_hub().loop.idle(ref=False)
        self._handled = float("-inf")
        self.is_awake = False

    def handled(self) -> None:
        """Note that a request has been handled, or waits for something.  Called in the event loop."""
        now = self._clock()
        if now - self._handled < self._limit_s and not self.is_awake:
            self.is_awake = True
            self._idle.start(self._look)
        self._handled = now

    def _look(self) -> None:
        if self._clock() - self._handled < self._limit_s:
            # Without this a client or a command on the same processor waits for its time slice.
            os.sched_yield()
        else:
            self.is_awake = False
            self._idle.stop()
