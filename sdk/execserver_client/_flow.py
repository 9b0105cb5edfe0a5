"""When the client stops reading: the rule of `flow_rules`, for tasks.

Who reads and who waits is a task, unless `caller` says otherwise: the blocking client makes a task for each
call of a thread, and the thread is who goes on between its calls.  Tasks that a reader makes count as the
reader, which mostly awaits them, until it has ended.  A reader that takes nothing for 2 s while somebody
waits for the server may be waiting for just that one, which nobody can see; it then counts as waiting, too,
until it takes something.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Final, Protocol
from weakref import ref

from execserver.client.rules import flow_rules
from execserver.client.rules.flow_rules import RECHECK_SECONDS, Waiting

_PATIENCE_TURNS: Final = 8  # so many waits without a byte taken, and the reader itself seems to wait


class Party(Protocol):
    """Somebody who can read and wait, until he is done.  Can be hashed and referred to weakly."""

    def done(self) -> bool:
        """Return whether nothing more comes of him."""


caller: ContextVar[Party | None] = ContextVar("caller", default=None)
"""On whose behalf the current task works, if it is not itself who reads or waits."""


def party() -> Party:
    """Return who reads or waits in the current task."""
    found = _living_caller() or asyncio.current_task()
    assert found is not None
    return found


def _living_caller() -> Party | None:
    # One that has ended is still noted for the tasks that it made and that go on, and for the next ones where
    # it was a main task of an `asyncio.Runner`, since all those have one context.  They count as themselves:
    # as one that has ended they would be readers for whom nothing is held back.
    found = caller.get()
    return None if found is None or found.done() else found


class _Task:
    """A task that reads; its context holds this, and so this must not hold the task."""

    __slots__ = ("__weakref__", "_task")

    def __init__(self, task: asyncio.Task[object]) -> None:
        self._task = ref(task)

    def done(self) -> bool:
        """Return whether the task has ended."""
        task = self._task()
        return task is None or task.done()


class Inlet(flow_rules.Inlet[Party]):
    """What one consumer has not taken yet."""

    __slots__ = ()

    def read_by_caller(self) -> None:
        """Note that the current task's party takes something."""
        found = _living_caller()
        if found is None:
            task = asyncio.current_task()
            assert task is not None
            found = _Task(task)
            caller.set(found)  # also for the tasks that this one makes
        self.read_by(found)


class Gate(flow_rules.FlowRule[Party]):
    """Decides whether a connection's reader may read the next message."""

    def __init__(self, limit: int, hard_limit: int) -> None:
        super().__init__(limit, hard_limit, _PATIENCE_TURNS)
        self._changed = asyncio.Event()

    def is_over(self, party: Party) -> bool:
        """See `FlowRule`."""
        return party.done()

    def wake(self) -> None:
        """See `FlowRule`."""
        self._changed.set()

    def waiting(self) -> Waiting[Party]:
        """Return a context manager; inside, the current task's party counts as waiting for the server."""
        return Waiting(self, party())

    async def hold_back(self) -> None:
        """Wait while the connection's reader must stop; let others run in any case."""
        # Messages that have arrived already are taken without waiting, so no consumer would run.
        await asyncio.sleep(0)
        for _ in self.stops():
            self._changed.clear()
            try:
                async with asyncio.timeout(RECHECK_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                pass  # the rule looks again
