"""What a handler may return besides a plain result record."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec


class Reply:
    """A result, and what to do once it is queued (so that notifications follow the answer)."""

    __slots__ = ("result", "then")

    def __init__(self, result: Result, then: Callable[[], None]) -> None:
        self.result = result
        self.then = then


class Later:
    """An answer that waits for something: `run` is called in a greenlet of its own and delays nobody."""

    __slots__ = ("run",)

    def __init__(self, run: Callable[[], Result | Reply]) -> None:
        self.run = run


class InParts:
    """A large result as the parts of its JSON text, sent as one message without joining them first."""

    __slots__ = ("parts",)

    def __init__(self, *parts: bytes) -> None:
        self.parts = parts


class Streamed:
    """A large result as pieces of its JSON text, sent as one message in continuation frames."""

    __slots__ = ("pieces",)

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.pieces = pieces


Result = msgspec.Struct | msgspec.Raw | InParts
Answer = Result | Reply | Later | Streamed
