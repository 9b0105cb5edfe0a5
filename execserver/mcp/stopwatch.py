"""The clock of one call: it stands still while a person is asked (shell tool contract, section 3).

Pauses are counted.  The first one stops the clock, the end of the last one starts it again; the stretches in
between add up.  While it stands it cannot run out.  Pure: the time, in nanoseconds, is passed in and may come
from any clock that never goes back.
"""

from __future__ import annotations


class Stopwatch:
    """Counts running time towards a limit; `limit_ns` None means none.  Runs from the moment it is made."""

    __slots__ = ("_before_ns", "_limit_ns", "_pauses", "_since_ns")

    def __init__(self, limit_ns: int | None, now_ns: int) -> None:
        self._limit_ns = limit_ns
        self._before_ns = 0  # of the stretches that are over
        self._since_ns = now_ns
        self._pauses = 0

    @property
    def paused(self) -> bool:
        """Tell whether the clock stands."""
        return self._pauses > 0

    def pause(self, now_ns: int) -> None:
        """Begin a pause."""
        if not self._pauses:
            self._before_ns = self.elapsed_ns(now_ns)
        self._pauses += 1

    def resume(self, now_ns: int) -> None:
        """End one pause.  Raises ValueError when none is open."""
        if not self._pauses:
            raise ValueError("the stopwatch is not paused")
        self._pauses -= 1
        if not self._pauses:
            self._since_ns = now_ns

    def elapsed_ns(self, now_ns: int) -> int:
        """Return the running time, pauses left out."""
        return self._before_ns if self._pauses else self._before_ns + now_ns - self._since_ns

    def remaining_ns(self, now_ns: int) -> int | None:
        """Return the running time that is left, 0 when it is up; None without a limit.

        While the clock stands this says what will be left when it goes on: ask `expired` whether to end.
        """
        if self._limit_ns is None:
            return None
        return max(0, self._limit_ns - self.elapsed_ns(now_ns))

    def expired(self, now_ns: int) -> bool:
        """Tell whether the time is up; never while the clock stands."""
        return not self._pauses and self.remaining_ns(now_ns) == 0
