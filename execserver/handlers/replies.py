"""What a handler may return besides a plain result record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

import msgspec


class Special:
    """An answer that is more than a result record or JSON text: one of the classes below."""

    __slots__ = ()


class Reply(Special):
    """A result, and what to do once it is queued, so that notifications follow the answer.

    `leaves_first`: the answer is written before that, unless others are about to be written with it.
    """

    __slots__ = ("leaves_first", "result", "then")

    def __init__(self, result: Result, then: Callable[[], object], *, leaves_first: bool = False) -> None:
        self.result = result
        self.then = then
        self.leaves_first = leaves_first


class InTurn(Special):
    """An answer that may wait: `run` is called in the connection's greenlet, and delays later requests."""

    __slots__ = ("run",)

    def __init__(self, run: Callable[[], Answer]) -> None:
        self.run = run


class Later(Special):
    """An answer that waits for something: `run` is called in its own greenlet and delays no other request.

    A request that `repeats` has changed nothing while it waits, so that another server can be asked the same
    instead.  Where only a rest of the wait is left, `rest` returns the params to ask with.
    """

    __slots__ = ("repeats", "rest", "run")

    def __init__(
        self,
        run: Callable[[], Result | Reply],
        *,
        repeats: bool = False,
        rest: Callable[[], msgspec.Struct] | None = None,
    ) -> None:
        self.run = run
        self.repeats = repeats or rest is not None
        self.rest = rest


class InParts(Special):
    """A large result as the parts of its JSON text, sent as one message and never joined."""

    __slots__ = ("parts",)

    def __init__(self, *parts: bytes) -> None:
        self.parts = parts


class InBinary(Special):
    """A result in parts as `InParts`, or its `chunk` apart, for who takes the binary form of messages."""

    __slots__ = ("data", "text")

    def __init__(self, text: bytes, data: bytes) -> None:
        """Take the JSON text of a result with an empty `chunk`, and what stands in its place."""
        self.text = text
        self.data = data


class Streamed(Special):
    """A result too large to hold, as pieces of its JSON text, sent as one message in continuation frames.

    Keeps the order of the connection: later answers wait behind it.
    """

    __slots__ = ("pieces",)

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.pieces = pieces


Result = msgspec.Struct | msgspec.Raw | InParts | InBinary
Answer = Result | Reply | InTurn | Later | Streamed


def started_by(run: Callable[[], Answer]) -> Answer:
    """Return what `run` does, as `started` does."""
    return started(run())


def started(answer: Answer) -> Answer:
    """Produce the first piece of a streamed result now, while a failure can still become an error answer."""
    if not isinstance(answer, Streamed):
        return answer
    first = next(answer.pieces, b"")
    return Streamed(chain((first,), answer.pieces))
