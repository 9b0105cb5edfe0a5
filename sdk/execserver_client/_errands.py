"""What one client does beside its callers: catch up after a loss, tell the server that something is over.

An errand handles the errors of the session itself.  All end with the client.  A caller who waits for one
counts as waiting for the server (see `_flow`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar
from weakref import WeakSet

from execserver.client.errors import RequestFailed
from execserver_client._flow import Gate
from execserver_client._opening import Closable
from execserver_client._tasks import Tasks

P = ParamSpec("P")
T = TypeVar("T")


class Errands:
    """Begins errands until it is closed, which is behind the end of the session."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._tasks = Tasks()
        self._owned: WeakSet[Closable] = WeakSet()
        self._closed = False

    def own(self, owned: Closable) -> None:
        """Close something with the client, unless it has been closed before."""
        self._owned.add(owned)

    def begin(
        self, function: Callable[P, Coroutine[Any, Any, None]], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Task[None] | None:
        """Run a coroutine function beside the caller; None if it is too late, since the client is closed."""
        return None if self._closed else self._tasks.spawn(function(*args, **kwargs))

    async def finish(
        self, function: Callable[P, Coroutine[Any, Any, None]], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Run a coroutine function and wait for its end; it goes on if the caller is cancelled."""
        task = self.begin(function, *args, **kwargs)
        if task is not None:
            with self._gate.waiting():
                await asyncio.shield(task)

    async def opened(
        self, opening: Callable[[], Coroutine[Any, Any, T]], close: Callable[[], Coroutine[Any, Any, None]]
    ) -> T:
        """Return what `opening` returns; if that does not come to the caller, what it opened is closed again.

        An opening whose caller is cancelled goes on until its answer has come: a server forgets to close what
        is not open yet.  `close` is not needed after a refusal.
        """
        found: list[T] = []

        async def open_it() -> None:
            found.append(await opening())

        task = self._tasks.spawn(open_it())
        try:
            with self._gate.waiting():
                await asyncio.shield(task)
        except RequestFailed:
            raise
        except BaseException:
            self.begin(_close_behind, task, close)
            raise
        return found.pop()

    async def settle(self, seconds: float) -> None:
        """Wait up to so many seconds until all have ended."""
        try:
            async with asyncio.timeout(seconds):
                await self._tasks.settle()
        except TimeoutError:
            pass  # `close` cancels them

    async def close(self) -> None:
        """Cancel all, and wait until they have ended.  May be called again."""
        self._closed = True
        for owned in list(self._owned):
            await owned.aclose()
        self._tasks.cancel()
        await self._tasks.settle()


async def _close_behind(opening: asyncio.Task[None], close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    await asyncio.wait([opening])
    refused = not opening.cancelled() and isinstance(opening.exception(), RequestFailed)
    if not refused:
        await close()
