"""Waiting in an event loop for what no event tells of."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

SOON = 20.0


_TURNS = 10  # of the event loop: what a task closes at its end calls back in the next ones


async def until(ready: Callable[[], object]) -> None:
    """Return once something is true; fail after 20 seconds."""
    async with asyncio.timeout(SOON):
        while not ready():
            await asyncio.sleep(0.005)


async def until_alone() -> None:
    """Return once no other task of the event loop is left, and what the last of them has closed is."""
    await until(lambda: len(asyncio.all_tasks()) == 1)
    for _ in range(_TURNS):
        await asyncio.sleep(0)


async def until_equal(ask: Callable[[], Awaitable[T]], wanted: T) -> None:
    """Ask until the answer is the wanted one; fail after 20 seconds."""
    async with asyncio.timeout(SOON):
        while await ask() != wanted:
            await asyncio.sleep(0.005)
