"""Running asyncio tests, so that what a client leaves behind is a failure."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from tests.support.leaks import snapshot

T = TypeVar("T")

LIMIT_S = 45.0
_SETTLE_S = 20.0


def run_async(work: Coroutine[object, object, T], limit: float = LIMIT_S) -> T:
    """Run a test's coroutine in a new event loop and return what it returns.

    It fails after `limit` seconds, and if tasks, descriptors, children or threads are left then, or if the
    loop was told of an error that nobody has handled.
    """
    threads = set(threading.enumerate())
    return asyncio.run(_watched(work, limit, threads))


async def _watched(work: Coroutine[object, object, T], limit: float, threads: set[threading.Thread]) -> T:
    loop = asyncio.get_running_loop()
    unhandled: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    before = snapshot()
    async with asyncio.timeout(limit):
        result = await work
    deadline = loop.time() + _SETTLE_S

    def left() -> list[str]:
        tasks = [str(task) for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        others = [str(thread) for thread in threading.enumerate() if thread not in threads]
        return tasks + others + snapshot().leaked_since(before)

    while (found := left()) and loop.time() < deadline:
        await asyncio.sleep(0.005)  # a thread and a child need a moment after their last words
    assert found == [], found
    assert unhandled == [], unhandled
    return result
