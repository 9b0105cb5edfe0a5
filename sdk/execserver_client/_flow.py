"""When the client stops reading: the rule of `execserver.client.flow`, for tasks in place of greenlets.

Unread output of one process (or HTTP stream) may reach `max_unread_bytes`.  Above it the client stops reading
the connection, so the server stops the child; nothing is lost.  Stopping would be wrong if it could block a
caller for ever: somebody waits for the server, and the full process has no reader, or its reader is the one
that waits.  Then reading goes on, up to `max_unread_bytes_while_waiting`; beyond that the oldest output of
the process is dropped and its reader gets an `OutputGap` (an HTTP stream fails).

Who reads and who waits is a task, unless `caller` says otherwise: the blocking client makes a task for each
call of a thread, and the thread is who goes on between its calls.  Tasks that a reader makes count as the
reader, which mostly awaits them.  A reader that takes nothing for 2 s while somebody waits for the server may
be waiting for just that one, which nobody can see; it then counts as waiting, too, until it takes something.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from types import TracebackType
from typing import Final, Protocol
from weakref import ref

_RECHECK_SECONDS: Final = 0.25  # a reader task that has ended is noticed after this time
_PATIENCE_TURNS: Final = 8  # so many of these without a byte taken, and the reader itself seems to wait
_MESSAGES_PER_TURN: Final = 32


class Party(Protocol):
    """Somebody who can read and wait, until he is done.  Can be hashed and referred to weakly."""

    def done(self) -> bool:
        """Return whether nothing more comes of him."""


caller: ContextVar[Party | None] = ContextVar("caller", default=None)
"""On whose behalf the current task works, if it is not itself who reads or waits."""


def party() -> Party:
    """Return who reads or waits in the current task."""
    found = caller.get() or asyncio.current_task()
    assert found is not None
    return found


class _Task:
    """A task that reads; its context holds this, and so this must not hold the task."""

    __slots__ = ("__weakref__", "_task")

    def __init__(self, task: asyncio.Task[object]) -> None:
        self._task = ref(task)

    def done(self) -> bool:
        """Return whether the task has ended."""
        task = self._task()
        return task is None or task.done()


class Inlet:
    """What one consumer has not taken yet: the bytes held, and who took some last."""

    __slots__ = ("_reader", "held", "is_stalled")

    def __init__(self) -> None:
        self.held = 0
        self.is_stalled = False  # its reader has taken nothing for long, while somebody waited
        self._reader: ref[Party] | None = None  # weak: a failed task holds, by a traceback, what it read

    @property
    def reader(self) -> Party | None:
        """Who was the last to take something, if he still exists."""
        return None if self._reader is None else self._reader()

    def read_by_caller(self) -> None:
        """Note that the current task's party takes something."""
        found = caller.get()
        if found is None:
            task = asyncio.current_task()
            assert task is not None
            found = _Task(task)
            caller.set(found)  # also for the tasks that this one makes
        if self._reader is None or self._reader() is not found:
            self._reader = ref(found)


class Gate:
    """Decides whether a connection's reader may read the next message."""

    def __init__(self, limit: int, hard_limit: int) -> None:
        self.hard_limit = hard_limit
        self._limit = limit
        self._full: set[Inlet] = set()
        self._waiting: dict[Party, int] = {}
        self._changed = asyncio.Event()
        self._messages = 0
        self._takes = 0

    def update(self, inlet: Inlet, held: int) -> None:
        """Note how many bytes an inlet holds now."""
        if held < inlet.held:
            inlet.is_stalled = False
            self._takes += 1
        inlet.held = held
        if held > self._limit:
            self._full.add(inlet)
        elif inlet in self._full:
            self._full.discard(inlet)
            self._changed.set()

    def waiting(self) -> _Waiting:
        """Return a context manager; inside, the current task's party counts as waiting for the server."""
        return _Waiting(self._waiting, self._changed)

    def must_stop(self) -> bool:
        """True if an inlet is full and to stop reading can block nobody for ever."""
        return any(not self._waiting or self._will_be_read(inlet) for inlet in self._full)

    def _will_be_read(self, inlet: Inlet) -> bool:
        reader = None if inlet.is_stalled else inlet.reader
        return reader is not None and not reader.done() and reader not in self._waiting

    def is_due(self) -> bool:
        """Count a message; return whether `hold_back` must be awaited before the next is taken."""
        self._messages += 1
        return bool(self._full) or self._messages % _MESSAGES_PER_TURN == 0

    async def hold_back(self) -> None:
        """Wait while the connection's reader must stop; let others run in any case."""
        # Messages that have arrived already are taken without waiting, so no consumer would run.
        await asyncio.sleep(0)
        turns, takes = 0, self._takes
        while self.must_stop():
            self._changed.clear()
            try:
                async with asyncio.timeout(_RECHECK_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                turns += 1
            if takes != self._takes or not self._waiting:
                turns, takes = 0, self._takes
            elif turns >= _PATIENCE_TURNS:
                for inlet in self._full:
                    inlet.is_stalled = True


class _Waiting:
    """Counts the current task's party in and out."""

    __slots__ = ("_changed", "_party", "_waiting")

    def __init__(self, waiting: dict[Party, int], changed: asyncio.Event) -> None:
        self._waiting = waiting
        self._changed = changed
        self._party = party()

    def __enter__(self) -> None:
        self._waiting[self._party] = self._waiting.get(self._party, 0) + 1
        self._changed.set()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        left = self._waiting[self._party] - 1
        if left:
            self._waiting[self._party] = left
        else:
            del self._waiting[self._party]
