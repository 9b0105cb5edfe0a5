"""Operations: generators that yield the calls of one task and return its result.

Who carries one out sends in the result of each call; an error of the call, also one that ends the waiting, is
thrown in.  So the same code serves the client on gevent (`drive`) and that on asyncio.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from execserver.protocol.method import Method
from execserver.protocol.record import Record

P = TypeVar("P", bound=Record)
R = TypeVar("R", bound=msgspec.Struct)
T = TypeVar("T")


class Call(NamedTuple):
    """One request: with `resend` it may be sent again after a loss; `timeout` is in seconds."""

    method: Method[Any, Any]
    params: Record
    resend: bool = False
    timeout: float | None = None


Operation: TypeAlias = Generator[Call, Any, T]
"""A task on the server that returns a T.  What is sent in is the result type of the method called."""


class Caller(Protocol):
    """What carries out calls and blocks meanwhile: the session of the client on gevent."""

    def call(
        self, method: Method[P, R], params: P, *, resend: bool = False, timeout: float | None = None
    ) -> R:
        """Return the result of one call."""


def ask(
    method: Method[P, R], params: P, *, resend: bool = False, timeout: float | None = None
) -> Operation[R]:
    """Make one call; for `yield from`, which unlike a bare `yield Call(...)` knows the type of the result."""
    answer: R = yield Call(method, params, resend, timeout)
    return answer


def drive(caller: Caller, operation: Operation[T]) -> T:
    """Carry out an operation and return its result.  Raises what the operation does not handle."""
    try:
        wanted = next(operation)
        while True:
            try:
                answer = caller.call(
                    wanted.method, wanted.params, resend=wanted.resend, timeout=wanted.timeout
                )
            except BaseException as error:  # also what ends this greenlet: the operation may have to clean up
                wanted = operation.throw(error)
            else:
                wanted = operation.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result
