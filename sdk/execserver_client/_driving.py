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


async def adrive(caller: Caller, operation: Operation[T], *, resend: bool = False) -> T:
    """Carry out an operation and return its result.  Raises what the operation does not handle.

    With `resend` all its calls may be sent again after a loss, for what only reads.  A cancellation is thrown
    into the operation, too; calls that it makes to clean up are still carried out.
    """
    try:
        wanted = next(operation)
        while True:
            try:
                answer = await caller.call(
                    wanted.method, wanted.params, resend=resend or wanted.resend, timeout=wanted.timeout
                )
            except BaseException as error:  # also the cancellation: the operation may have to clean up
                wanted = operation.throw(error)
            else:
                wanted = operation.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result
