"""Blocking work off the loop in bounded pieces, and calls that are made ahead."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextvars import copy_context
from typing import Any, TypeVar

from execserver_client._flow import caller, party

T = TypeVar("T")


async def in_thread(work: Callable[..., T], *args: object, undo: Callable[[T], object] | None = None) -> T:
    """Run a piece of work in a thread.

    A caller that is cancelled waits for its end, since it will close what the work uses; `undo` then takes
    the result that nobody gets.  So the work must be short.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work, *args))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                pass  # it is on its way out already
        if task.exception() is None and undo is not None:
            undo(task.result())
        raise


def begin(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Begin a part of what the current task does: who reads or waits in it is that one (see `_flow`)."""
    context = copy_context()
    context.run(caller.set, party())
    return asyncio.create_task(work, context=context)


async def ahead(works: Iterable[Callable[[], Coroutine[Any, Any, T]]], most: int) -> AsyncGenerator[T, None]:
    """Yield the results of works in their order, with so many begun at a time.

    Raises the first error.  Close it (`contextlib.aclosing`): what is on its way then is cancelled and waited
    for.
    """
    begun: deque[asyncio.Task[T]] = deque()
    try:
        for work in works:
            begun.append(begin(work()))
            if len(begun) == most:
                yield await _first(begun)
        while begun:
            yield await _first(begun)
    finally:
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)


async def _first(begun: deque[asyncio.Task[T]]) -> T:
    result = await begun[0]  # it stays there until it has ended, so that who is cancelled waits for it, too
    begun.popleft()
    return result
