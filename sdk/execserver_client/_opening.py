"""What a call opens: `await` it for the thing itself, or `async with` it to have it closed, too."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar


class Closable(Protocol):
    """What has to be closed."""

    async def aclose(self) -> None:
        """End it.  May be called again."""


T = TypeVar("T", bound=Closable)


class Opening(Generic[T]):
    """Opens something, once."""

    def __init__(self, opening: Coroutine[Any, Any, T]) -> None:
        """`opening` returns the open thing; if it is cancelled it closes what it may have opened."""
        self._opening = opening
        self._opened: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._opening.__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._opening
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.aclose()
