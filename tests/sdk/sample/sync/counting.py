"""The blocking twin of `tests.sdk.sample.counting`; `build.py docs` writes it from there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self

from execserver_client.sync import _shapes as shapes
from execserver_client.sync._portal import Portal
from execserver_client.sync._shapes import Context, Items
from tests.sdk.sample import counting as asynchronous
from tests.sdk.sample.counting import Direction


class Counter:
    """Counts, in a loop.

    with Counter() as counter:
        counter.add(3)
    """

    def __init__(self, portal: Portal, wrapped: asynchronous.Counter) -> None:
        self._portal = portal
        self._wrapped = wrapped
        portal.adopt(wrapped.aclose)

    @property
    def first(self) -> Step:
        """As in `tests.sdk.sample.Counter`."""
        return Step(self._portal, self._wrapped.first)

    @property
    def cleaned(self) -> list[str]:
        """As in `tests.sdk.sample.Counter`."""
        return self._wrapped.cleaned

    def __enter__(self) -> Self:
        self._portal.call(self._wrapped.__aenter__)
        return self

    def __exit__(self, *error: Any) -> None:
        self._portal.close()

    @property
    def value(self) -> int:
        """How far it is."""
        return self._wrapped.value

    def add(self, number: int = 1, *, direction: Direction = "up") -> int:
        """Add a number and return the value; raise Refused below 0."""
        return self._portal.call(self._wrapped.add, number, direction=direction)

    def add_all(self, numbers: Iterable[int] | list[int]) -> int:
        """Add many numbers."""
        return self._portal.call(
            self._wrapped.add_all,
            numbers if isinstance(numbers, list) else shapes.feed(numbers),
        )

    def wait(self) -> None:
        """Wait until cancelled."""
        self._portal.call(self._wrapped.wait)

    def up_to(self, end: int) -> Items[int]:
        """Yield numbers, one after another."""
        found = self._portal.run(self._wrapped.up_to, end)
        return Items(self._portal, found, shapes.same)

    def steps(self) -> Steps:
        """Return an iterator that is an object."""
        return Steps(self._portal, self._portal.run(self._wrapped.steps))

    def step(self, number: int) -> Context[Step]:
        """Make a step for a while."""
        found = self._portal.run(self._wrapped.step, number)
        return Context(self._portal, found, lambda each: Step(self._portal, each))

    def kept(self, number: int, *, times: int = 1) -> Kept:
        """Keep a step until it is closed."""
        found = self._portal.call(
            shapes.settle,
            lambda: self._wrapped.kept(number, times=times),
        )
        return Kept(self._portal, found)

    def find(self, number: int) -> Step | None:
        """Return a step, or None."""
        found = self._portal.call(self._wrapped.find, number)
        return None if found is None else Step(self._portal, found)

    def same_as(self, step: Step, other: Step | None = None) -> bool:
        """Compare steps."""
        return self._portal.call(
            self._wrapped.same_as,
            step._wrapped,
            other._wrapped if isinstance(other, Step) else other,
        )

    def every(self) -> list[Step]:
        """Return all steps."""
        found = self._portal.call(self._wrapped.every)
        return [Step(self._portal, each) for each in found]

    def on_change(self, listener: Callable[[int], None]) -> None:
        """Have the value told, in the loop."""
        self._portal.run(self._wrapped.on_change, listener)

    def close(self) -> None:
        """Close it."""
        self._portal.close()


class Step:
    """One step of a counter."""

    def __init__(self, portal: Portal, wrapped: asynchronous.Step) -> None:
        self._portal = portal
        self._wrapped = wrapped

    @property
    def number(self) -> int:
        """As in `tests.sdk.sample.Step`."""
        return self._wrapped.number

    def twice(self) -> int:
        """Return the double."""
        return self._portal.call(self._wrapped.twice)


class Steps:
    """Steps, one after another."""

    def __init__(self, portal: Portal, wrapped: asynchronous.Steps) -> None:
        self._portal = portal
        self._wrapped = wrapped

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Step:
        for item in self._portal.call(shapes.step, self._wrapped):
            return Step(self._portal, item)
        raise StopIteration


class Kept:
    """A step that has to be closed."""

    def __init__(self, portal: Portal, wrapped: asynchronous.Kept) -> None:
        self._portal = portal
        self._wrapped = wrapped

    @property
    def number(self) -> int:
        """As in `tests.sdk.sample.Kept`."""
        return self._wrapped.number

    def close(self) -> None:
        """Give it back."""
        self._portal.call(self._wrapped.aclose)

    def __enter__(self) -> Self:
        self._portal.call(self._wrapped.__aenter__)
        return self

    def __exit__(self, *error: Any) -> None:
        self._portal.call(self._wrapped.__aexit__, *error)
