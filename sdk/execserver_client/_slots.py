"""A semaphore that stays fast when thousands of its waiters are cancelled."""

from __future__ import annotations

import asyncio
from types import TracebackType


class Slots:
    """So many tasks may be inside at once; the others come in in the order in which they came."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiters: dict[asyncio.Future[None], None] = {}

    async def __aenter__(self) -> None:
        await self.take()

    async def take(self) -> None:
        """Come in; `give` must follow."""
        if self._free > 0:  # nobody waits then
            self._free -= 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled():
                self.give()  # it had got a slot, and was cancelled before it could run
            else:
                self._waiters.pop(waiter, None)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give()

    def give(self) -> None:
        """Go out."""
        while self._waiters:
            waiter = next(iter(self._waiters))
            del self._waiters[waiter]
            if not waiter.done():  # else it was cancelled, and has not run since
                waiter.set_result(None)
                return
        self._free += 1
