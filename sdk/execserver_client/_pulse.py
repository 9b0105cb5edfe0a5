"""A wake-up for tasks that look again at what they wait for: smaller than `asyncio.Event`, and never set."""

from __future__ import annotations

import asyncio


class Pulse:
    """Wakes those who wait at that moment.  Thousands of objects have one: nothing is made before a wait.

    Whoever waits looks at his condition first; nothing can come between that and `wait`.
    """

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], None] | None = None

    def beat(self) -> None:
        """Wake all who wait."""
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            if not waiter.done():  # else it was cancelled, and has not run since
                waiter.set_result(None)

    async def wait(self) -> None:
        """Wait for the next beat."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._waiters is None:
            self._waiters = {}
        self._waiters[waiter] = None
        try:
            await waiter
        finally:
            if self._waiters is not None:
                self._waiters.pop(waiter, None)
