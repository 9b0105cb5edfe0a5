"""Carries out the operations of `execserver.client.operations` on asyncio."""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec

from execserver.client.operations.call import Operation
from execserver.protocol.method import Method
from execserver.protocol.record import Record

P = TypeVar("P", bound=Record)
R = TypeVar("R", bound=msgspec.Struct)
T = TypeVar("T")


class Caller(Protocol):
    """What carries out calls: a session."""

    async def call(
        self, method: Method[P, R], params: P, *, resend: bool = False, timeout: float | None = None
    ) -> R:
        """Return the result of one call."""


async def adrive(caller: Caller, operation: Operation[T]) -> T:
    """Carry out an operation and return its result.  Raises what the operation does not handle.

    A cancellation is thrown into the operation, too; calls that it makes to clean up are still carried out.
    """
    try:
        wanted = next(operation)
        while True:
            try:
                answer = await caller.call(
                    wanted.method, wanted.params, resend=wanted.resend, timeout=wanted.timeout
                )
            except BaseException as error:  # also the cancellation: the operation may have to clean up
                wanted = operation.throw(error)
            else:
                wanted = operation.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result
