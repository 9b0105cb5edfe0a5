"""When the server rests: what the zygote does ahead must not take the processor from a busy server.

On a processor that both use, the kernel lets the zygote go on for up to a millisecond or three when a request
wakes the server.
"""

from __future__ import annotations

import time

_BUSY_S = 0.005  # of processor time between two questions
_MOST_DENIALS = 20
_WHOLE_PROCESS = 2  # the clock's kind in its number: the kernel's CPUCLOCK_SCHED


class ServerRest:
    """Tells whether a process has used next to no processor time since the last question, or the start."""

    def __init__(self, pid: int) -> None:
        self._clock = (~pid << 3) | _WHOLE_PROCESS
        self._used = self._time()
        self._denials = 0

    def has_come(self) -> bool:
        """Return whether it rests; True, too, for one that never does, after twenty questions."""
        before, self._used = self._used, self._time()
        self._denials += 1
        return self._used - before < _BUSY_S or self._denials > _MOST_DENIALS

    def _time(self) -> float:
        try:
            return time.clock_gettime(self._clock)
        except OSError:
            return 0.0  # it has ended, or is in another namespace: nobody is to be spared
