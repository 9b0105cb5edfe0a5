"""When the client stops reading: the limit for output that nobody has taken yet.

Unread output of one process (or HTTP stream) may reach `max_unread_bytes`.  Above it the client stops reading
the connection, so the server stops the child; nothing is lost.  Stopping would be wrong if it could block a
caller for ever: a greenlet waits for the server, and the full process has no reader, or its reader is the one
that waits.  Then reading goes on, up to `max_unread_bytes_while_waiting`; beyond that the oldest output of
the process is dropped and its reader gets an `OutputGap` (an HTTP stream fails).
"""

from __future__ import annotations

from types import TracebackType
from typing import Final
from weakref import ref

import gevent
from gevent.event import Event
from greenlet import getcurrent, greenlet

_RECHECK_SECONDS: Final = 0.25  # a reader greenlet that has ended is noticed after this time
_MESSAGES_PER_TURN: Final = 32


class Inlet:
    """What one consumer has not taken yet: the bytes held, and the greenlet that took some last."""

    __slots__ = ("_reader", "held")

    def __init__(self) -> None:
        self.held = 0
        self._reader: ref[greenlet] | None = None  # weak: a killed one holds, by a traceback, what it read

    @property
    def reader(self) -> greenlet | None:
        """The greenlet that was the last to take something, if it still exists."""
        return None if self._reader is None else self._reader()

    @reader.setter
    def reader(self, reader: greenlet | None) -> None:
        """Note which greenlet takes something."""
        self._reader = None if reader is None else ref(reader)


class Gate:
    """Decides whether a connection's reader may read the next message."""

    def __init__(self, limit: int, hard_limit: int) -> None:
        self.hard_limit = hard_limit
        self._limit = limit
        self._full: set[Inlet] = set()
        self._waiting: dict[greenlet, int] = {}
        self._changed = Event()
        self._messages = 0

    def update(self, inlet: Inlet, held: int) -> None:
        """Note how many bytes an inlet holds now."""
        inlet.held = held
        if held > self._limit:
            self._full.add(inlet)
        elif inlet in self._full:
            self._full.discard(inlet)
            self._changed.set()

    def waiting(self) -> _Waiting:
        """Return a context manager; inside, the current greenlet counts as waiting for the server."""
        return _Waiting(self._waiting, self._changed)

    def must_stop(self) -> bool:
        """True if an inlet is full and to stop reading can block nobody for ever."""
        return any(not self._waiting or self._will_be_read(inlet) for inlet in self._full)

    def _will_be_read(self, inlet: Inlet) -> bool:
        reader = inlet.reader
        return reader is not None and not reader.dead and reader not in self._waiting

    def hold_back(self) -> None:
        """Block the connection's reader while it must stop; let others run now and then in any case."""
        self._messages += 1
        if self._full or self._messages % _MESSAGES_PER_TURN == 0:
            # Reading from a socket that always has data never waits, so no consumer would run.
            gevent.sleep(0)
        while self.must_stop():
            self._changed.clear()
            self._changed.wait(_RECHECK_SECONDS)


class _Waiting:
    """Counts the current greenlet in and out."""

    __slots__ = ("_changed", "_greenlet", "_waiting")

    def __init__(self, waiting: dict[greenlet, int], changed: Event) -> None:
        self._waiting = waiting
        self._changed = changed
        self._greenlet = getcurrent()

    def __enter__(self) -> None:
        self._waiting[self._greenlet] = self._waiting.get(self._greenlet, 0) + 1
        self._changed.set()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        left = self._waiting[self._greenlet] - 1
        if left:
            self._waiting[self._greenlet] = left
        else:
            del self._waiting[self._greenlet]
