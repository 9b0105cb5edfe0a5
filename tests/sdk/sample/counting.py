"""Classes with every shape that the twin's writer knows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal, Self

from execserver_client._opening import Opening

Direction = Literal["up", "down"]


class Refused(Exception):
    """The counter does not want that."""


class Step:
    """One step of a counter."""

    def __init__(self, number: int) -> None:
        self.number: int = number

    async def twice(self) -> int:
        """Return the double."""
        await asyncio.sleep(0)
        return 2 * self.number


class Counter:
    """Counts, in a loop.

    async with Counter() as counter:
        await counter.add(3)
    """

    def __init__(self) -> None:
        self.first = Step(1)
        self.cleaned: list[str] = []
        self._value = 0

    async def __aenter__(self) -> Self:
        self.cleaned.append("entered")
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    @property
    def value(self) -> int:
        """How far it is."""
        return self._value

    async def add(self, number: int = 1, *, direction: Direction = "up") -> int:
        """Add a number and return the value; raise Refused below 0."""
        await asyncio.sleep(0)
        if number < 0:
            raise Refused(f"{number} is below 0")
        self._value += number if direction == "up" else -number
        return self._value

    async def add_all(self, numbers: AsyncIterable[int] | list[int]) -> int:
        """Add many numbers."""
        if isinstance(numbers, list):
            self._value += sum(numbers)
        else:
            async for number in numbers:
                self._value += number
        return self._value

    async def wait(self) -> None:
        """Wait until cancelled."""
        self.cleaned.append("waiting")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self.cleaned.append("cancelled")

    async def up_to(self, end: int) -> AsyncIterator[int]:
        """Yield numbers, one after another."""
        try:
            for number in range(end):
                await asyncio.sleep(0)
                yield number
        finally:
            self.cleaned.append("generator")

    def steps(self) -> Steps:
        """Return an iterator that is an object."""
        return Steps(self._value)

    @asynccontextmanager
    async def step(self, number: int) -> AsyncIterator[Step]:
        """Make a step for a while."""
        try:
            yield Step(number)
        finally:
            self.cleaned.append("step")

    def kept(self, number: int, *, times: int = 1) -> Opening[Kept]:
        """Keep a step until it is closed."""
        return Opening(self._keep(number * times))

    async def find(self, number: int) -> Step | None:
        """Return a step, or None."""
        return Step(number) if number else None

    async def same_as(self, step: Step, other: Step | None = None) -> bool:
        """Compare steps."""
        return isinstance(step, Step) and (other is None or isinstance(other, Step))

    async def every(self) -> list[Step]:
        """Return all steps."""
        return [Step(number) for number in range(self._value)]

    def on_change(self, listener: Callable[[int], None]) -> None:
        """Have the value told, in the loop."""
        asyncio.get_running_loop().call_soon(listener, self._value)

    async def aclose(self) -> None:
        """Close it."""
        self.cleaned.append("closed")

    async def _keep(self, number: int) -> Kept:
        await asyncio.sleep(0)
        return Kept(self, number)


class Kept:
    """A step that has to be closed."""

    def __init__(self, counter: Counter, number: int) -> None:
        self.number: int = number
        self._counter = counter

    async def aclose(self) -> None:
        """Give it back."""
        self._counter.cleaned.append("kept")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


class Steps:
    """Steps, one after another."""

    def __init__(self, end: int) -> None:
        self._left = end

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Step:
        if not self._left:
            raise StopAsyncIteration
        self._left -= 1
        return Step(self._left)
