"""Work in threads whose caller is cancelled, and calls that are made ahead."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from functools import partial
from typing import Any

import pytest

from execserver_client._flow import party
from execserver_client._threads import ahead, begin, in_thread


def test_a_cancelled_caller_waits_for_its_thread_and_undoes_what_it_did() -> None:
    begun, go_on = threading.Event(), threading.Event()
    undone: list[str] = []

    def work() -> str:
        begun.set()
        go_on.wait(20)
        return "made"

    async def play() -> None:
        task = asyncio.create_task(in_thread(work, undo=undone.append))
        await asyncio.to_thread(begun.wait, 20)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        assert undone == []
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(play())
    assert undone == ["made"]


def test_errors_of_a_thread_reach_its_caller() -> None:
    with pytest.raises(FileNotFoundError):
        asyncio.run(in_thread(open, "/nowhere/at/all"))


class Works:
    """Numbered works that end when they are told to."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.cancelled: list[int] = []
        self.ends: list[asyncio.Event] = []

    def of(self, count: int) -> list[Callable[[], Coroutine[Any, Any, int]]]:
        self.ends = [asyncio.Event() for _ in range(count)]
        return [partial(self._work, number) for number in range(count)]

    async def _work(self, number: int) -> int:
        self.begun.append(number)
        try:
            await self.ends[number].wait()
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        if number == 5:
            raise LookupError(number)
        return number


def test_so_many_are_begun_ahead_and_come_in_their_order() -> None:
    async def play() -> None:
        works = Works()
        async with aclosing(ahead(works.of(5), 3)) as results:
            works.ends[2].set()
            works.ends[1].set()
            first = asyncio.ensure_future(anext(results))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert (works.begun, first.done()) == ([0, 1, 2], False)
            for end in works.ends:
                end.set()
            assert [await first, *[each async for each in results]] == [0, 1, 2, 3, 4]

    asyncio.run(play())


async def consume(works: Works, most: int) -> None:
    async with aclosing(ahead(works.of(9), most)) as results:
        async for _ in results:
            pass


def test_what_is_left_when_one_fails_is_cancelled_and_waited_for() -> None:
    async def play() -> None:
        works = Works()
        task = asyncio.create_task(consume(works, 3))
        while len(works.begun) < 8:
            await asyncio.sleep(0)
            for number in works.begun[:5]:
                works.ends[number].set()
        works.ends[5].set()
        with pytest.raises(LookupError):
            await task
        assert works.cancelled == [6, 7]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(play())


def test_a_cancelled_consumer_leaves_nothing_on_its_way() -> None:
    async def play() -> None:
        works = Works()
        task = asyncio.create_task(consume(works, 4))
        while len(works.begun) < 4:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert sorted(works.cancelled) == [0, 1, 2, 3]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(play())


def test_a_part_of_a_task_reads_and_waits_in_the_name_of_the_whole() -> None:
    async def who() -> object:
        return party()

    async def play() -> None:
        mine = party()
        assert await begin(who()) is mine
        assert await begin(_nested(who)) is mine
        assert await asyncio.create_task(who()) is not mine

    asyncio.run(play())


async def _nested(who: Callable[[], Coroutine[Any, Any, object]]) -> object:
    return await begin(who())
