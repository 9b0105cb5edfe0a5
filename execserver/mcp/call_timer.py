"""The call timer: the timeout clock of one call, stopped while a prompt is open (shell tool contract).

Pauses are counted.  The first one stops the clock, and the end of the last one starts it again; the running
times add up.  A stopped clock cannot expire.  Pure: the time, in nanoseconds, is an argument and may come
from any clock that never goes back.
"""

from __future__ import annotations


class CallTimer:
    """Counts running time towards a limit; with `limit_ns` None there is no limit.  Runs from the start."""

    __slots__ = ("_before_ns", "_limit_ns", "_pauses", "_since_ns")

    def __init__(self, limit_ns: int | None, now_ns: int) -> None:
        self._limit_ns = limit_ns
        self._before_ns = 0  # running time up to the latest pause
        self._since_ns = now_ns
        self._pauses = 0

    @property
    def paused(self) -> bool:
        """True while the clock is stopped."""
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
        """Return the running time, without pauses."""
        return self._before_ns if self._pauses else self._before_ns + now_ns - self._since_ns

    def remaining_ns(self, now_ns: int) -> int | None:
        """Return the running time that is left, at least 0; None without a limit.

        While the clock is stopped, this is what will be left when it goes on; `expired` says whether to end.
        """
        if self._limit_ns is None:
            return None
        return max(0, self._limit_ns - self.elapsed_ns(now_ns))

    def expired(self, now_ns: int) -> bool:
        """Return whether the time is up; never while the clock is stopped."""
        return not self._pauses and self.remaining_ns(now_ns) == 0
