"""The tasks that an object starts for itself, so that it can end them all."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context


class Tasks:
    """A set of running tasks; one that ends leaves it."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Start a task.  It has a context of its own, since it works for no caller."""
        task = asyncio.get_running_loop().create_task(work, context=Context())
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def cancel(self) -> None:
        """Cancel all but the task that calls."""
        current = asyncio.current_task()
        for task in list(self._running):
            if task is not current:
                task.cancel()

    async def settle(self) -> None:
        """Wait until all have ended but the one that calls.  What they raise stays theirs."""
        current = asyncio.current_task()
        while others := [task for task in self._running if task is not current]:
            await asyncio.wait(others)
