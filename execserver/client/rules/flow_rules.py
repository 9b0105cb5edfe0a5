"""When a client stops reading: the rule for output that nobody has taken yet, without I/O and waiting.

Unread output of one process (or HTTP stream) may reach `max_unread_bytes`.  Above it the client stops reading
the connection, so the server stops the child; nothing is lost.  Stopping would be wrong if it could block a
caller for ever: somebody waits for the server, and the full process has no reader, or its reader is the one
that waits.  Then reading goes on, up to `max_unread_bytes_while_waiting`; beyond that the oldest output of
the process is dropped and its reader gets an `OutputGap` (an HTTP stream fails).

With `patience` a reader that takes nothing for long, while somebody waits for the server, counts as waiting,
too, until it takes something: it may be waiting for just that one, which nobody can see.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Generic, TypeVar
from weakref import ref

RECHECK_SECONDS: Final = 0.25  # a reader that has ended is noticed after this time
_MESSAGES_PER_TURN: Final = 32

P = TypeVar("P")


class Inlet(Generic[P]):
    """What one consumer has not taken yet: the bytes held, and who took some last."""

    __slots__ = ("_reader", "held", "is_stalled")

    def __init__(self) -> None:
        self.held = 0
        self.is_stalled = False  # its reader has taken nothing for long, while somebody waited
        self._reader: ref[P] | None = None  # weak: one that failed holds, by a traceback, what it read

    @property
    def reader(self) -> P | None:
        """Who was the last to take something, if he still exists."""
        return None if self._reader is None else self._reader()

    def read_by(self, reader: P) -> None:
        """Note who takes something."""
        if self._reader is None or self._reader() is not reader:
            self._reader = ref(reader)


class FlowRule(ABC, Generic[P]):
    """Decides for one connection; `P` is who reads and waits, and can be hashed and referred to weakly."""

    def __init__(self, limit: int, hard_limit: int, patience: int | None = None) -> None:
        """`patience`: after so many waits without a byte taken a reader counts as waiting; None for never."""
        self.hard_limit = hard_limit
        self._limit = limit
        self._patience = patience
        self.full: set[Inlet[P]] = set()  # while it is empty, no message has to wait
        self._waiting: dict[P, int] = {}
        self._messages = 0
        self._takes = 0
        self._changes = 0

    @abstractmethod
    def is_over(self, party: P) -> bool:
        """Return whether nothing more comes of somebody."""

    @abstractmethod
    def wake(self) -> None:
        """End the wait of the connection's reader: there is something new to decide by."""

    def update(self, inlet: Inlet[P], held: int) -> None:
        """Note how many bytes an inlet holds now."""
        if held < inlet.held:
            inlet.is_stalled = False
            self._takes += 1
        inlet.held = held
        if held > self._limit:
            self.full.add(inlet)
        elif inlet in self.full:
            self.full.discard(inlet)
            self._change()

    def must_stop(self) -> bool:
        """True if an inlet is full and to stop reading can block nobody for ever."""
        return any(not self._waiting or self._will_be_read(inlet) for inlet in self.full)

    def is_due(self) -> bool:
        """Count a message; return whether others must run, and `stops` be asked, before the next is taken."""
        self._messages += 1
        return bool(self.full) or self._messages % _MESSAGES_PER_TURN == 0

    def stops(self) -> Iterator[None]:
        """Yield each time the connection's reader must wait: until `wake`, at most `RECHECK_SECONDS`."""
        turns, takes = 0, self._takes
        while self.must_stop():
            changes = self._changes
            yield
            turns += changes == self._changes
            if takes != self._takes or not self._waiting:
                turns, takes = 0, self._takes
            elif self._patience is not None and turns >= self._patience:
                for inlet in self.full:
                    inlet.is_stalled = True

    def enter(self, party: P) -> None:
        """Count somebody as waiting for the server, once more."""
        self._waiting[party] = self._waiting.get(party, 0) + 1
        self._change()

    def leave(self, party: P) -> None:
        """Count somebody as waiting once less."""
        left = self._waiting[party] - 1
        if left:
            self._waiting[party] = left
        else:
            del self._waiting[party]

    def _will_be_read(self, inlet: Inlet[P]) -> bool:
        reader = None if inlet.is_stalled else inlet.reader
        return reader is not None and not self.is_over(reader) and reader not in self._waiting

    def _change(self) -> None:
        self._changes += 1
        self.wake()


class Waiting(Generic[P]):
    """A context manager; inside, somebody counts as waiting for the server."""

    __slots__ = ("_party", "_rule")

    def __init__(self, rule: FlowRule[P], party: P) -> None:
        self._rule = rule
        self._party = party

    def __enter__(self) -> None:
        self._rule.enter(self._party)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rule.leave(self._party)
