"""One piece of work that many wait for: done once for all who come while it is under way."""

from __future__ import annotations

from collections.abc import Callable

from gevent.event import Event


class SingleFlight:
    """Does `work` in the greenlet of whoever comes first, while at most `waiting` others wait for it."""

    __slots__ = ("_done", "_left", "_work")

    def __init__(self, work: Callable[[], None], waiting: int) -> None:
        self._work = work
        self._left = waiting
        self._done: Event | None = None

    @property
    def under_way(self) -> bool:
        """True while somebody does the work."""
        return self._done is not None

    def join(self) -> None:
        """Do the work, or wait for who does it; return at once where too many wait already.

        Raises what the work raises to the one who does it; the others just return.
        """
        if self._done is None:
            self._lead()
        elif self._left:
            self._left -= 1
            try:
                self._done.wait()
            finally:
                self._left += 1

    def _lead(self) -> None:
        self._done = done = Event()
        try:
            self._work()
        finally:
            self._done = None
            done.set()
