"""The blocking forms of what asyncio code returns: iterators, contexts; and the other way what is given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from execserver_client.sync._portal import Portal

S = TypeVar("S")
T = TypeVar("T")

_END: Any = object()  # of a caller's iterator


class Items(Iterator[T], Generic[T]):
    """The items of an asynchronous iterator, each awaited when it is asked for.

    `close` ends it early, and so does leaving it as a context.
    """

    def __init__(self, portal: Portal, items: AsyncIterator[S], wrap: Callable[[S], T]) -> None:
        self._portal = portal
        self._items = items
        self._wrap: Callable[[Any], T] = wrap

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        for item in self._portal.call(step, self._items):
            return self._wrap(item)
        raise StopIteration

    def close(self) -> None:
        """Have what makes the items clean up; there are no more afterwards.  May be repeated."""
        aclose = getattr(self._items, "aclose", None)
        if aclose is not None:
            self._portal.call(settle, aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Context(Generic[T]):
    """An asynchronous context manager, entered and left by blocking calls."""

    def __init__(
        self, portal: Portal, context: AbstractAsyncContextManager[S, Any], wrap: Callable[[S], T]
    ) -> None:
        self._portal = portal
        self._context = context
        self._wrap: Callable[[Any], T] = wrap

    def __enter__(self) -> T:
        return self._wrap(self._portal.call(settle, self._context.__aenter__))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        def leave() -> Awaitable[bool | None]:
            return self._context.__aexit__(kind, error, traceback)

        return self._portal.call(settle, leave)


async def step(items: AsyncIterator[T]) -> list[T]:
    """Return the next item of an iterator as a list, which is empty at the end."""
    try:
        return [await anext(items)]
    except StopAsyncIteration:
        return []


async def settle(make: Callable[[], Awaitable[T]]) -> T:
    """Return what something awaitable becomes."""
    return await make()


async def feed(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items of a caller's iterator, which may block: it is asked in threads of its own."""
    if isinstance(items, list | tuple):  # these cannot block
        for item in items:
            yield item
        return
    iterator = iter(items)
    while (item := await asyncio.to_thread(next, iterator, _END)) is not _END:
        yield item


def same(value: T) -> T:
    """Return a value that needs no wrapping."""
    return value
