"""One connection: requests out, answers matched to them by id, notifications passed on in arrival order.

One task reads; callers wait in `request`.  When the connection ends, for whatever reason, every waiting
caller gets `TransportClosed` and the owner is called, once; he closes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from execserver.client.errors import ExecServerError, TransportClosed, kept
from execserver.client.rules import wire
from execserver.client.rules.calls import Calls, OnNotification, OnOutput, Outcome, closed_by
from execserver.client.rules.recovery import too_late
from execserver.protocol.lifting import JsonText
from execserver_client._flow import Gate
from execserver_client._slots import Slots
from execserver_client._tasks import Tasks
from execserver_client._transport import Transport

_Answer: TypeAlias = "asyncio.Future[Outcome]"
OnLost: TypeAlias = Callable[["Connection", ExecServerError], None]


class Connection:
    """Owns one transport from its making to `close`, which must be called."""

    def __init__(
        self,
        transport: Transport,
        gate: Gate,
        max_in_flight: int,
        on_notification: OnNotification,
        on_output: OnOutput,
        on_lost: OnLost,
    ) -> None:
        """Take a transport and start reading."""
        self.lost: ExecServerError | None = None
        self._transport = transport
        self._gate = gate
        self._slots = Slots(max_in_flight)
        self._calls: Calls[_Answer] = Calls(_wake, on_notification, on_output)
        self._on_lost: OnLost | None = on_lost
        self._tasks = Tasks()
        self._tasks.spawn(self._read())

    async def request(self, method: str, params: object, timeout: float | None = None) -> JsonText:
        """Send a request and return its result as JSON text.

        Raises `RequestFailed` (or its subclass for the code), `TransportClosed`, or `WaitTimeout` after
        `timeout` seconds; a late answer is then ignored, as is one for a caller that was cancelled.
        """
        if timeout is None:
            return await self._request(method, params)
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                return await self._request(method, params)
        except TimeoutError as error:
            if limit.expired() and not isinstance(error, ExecServerError):
                raise too_late(method, timeout) from None
            raise

    async def post(self, method: str, params: object) -> Posted:
        """Send a request and return where its outcome comes; also the error of a connection that is lost."""
        answer: _Answer = asyncio.get_running_loop().create_future()
        call_id, message = self._calls.begin(method, params, answer)
        slots = self._slots
        try:
            with self._gate.waiting():
                await slots.take()
                answer.add_done_callback(lambda _: slots.give())
                await self._send(message)
        except ExecServerError as error:
            self._calls.forget(call_id)
            _wake(answer, kept(error))
        except BaseException:
            self._calls.forget(call_id)
            answer.cancel()
            raise
        return Posted(method, answer, self._gate)

    def use_binary(self) -> None:
        """Send long bytes without base64 from now on, if the transport carries them."""
        self._calls.takes_binary = self._transport.carries_binary

    async def notify(self, method: str, params: object) -> None:
        """Send a notification.  Raises `TransportClosed`."""
        await self._send(wire.encode_notification(method, params))

    async def close(self) -> None:
        """End the connection and wait until nothing of it is left; waiting callers get `TransportClosed`.

        May be called again, and by several.
        """
        self._finish(TransportClosed("the connection was closed by this client"))
        await self._transport.close()
        await self._tasks.settle()

    async def _request(self, method: str, params: object) -> JsonText:
        with self._gate.waiting():
            async with self._slots:
                if self.lost is not None:
                    raise closed_by(self.lost)
                answer: _Answer = asyncio.get_running_loop().create_future()
                call_id, message = self._calls.begin(method, params, answer)
                try:
                    await self._send(message)
                    result = await answer
                finally:
                    self._calls.forget(call_id)  # also of a caller that was cancelled
                if isinstance(result, ExecServerError):
                    raise kept(result)
                return result

    async def _send(self, message: bytes) -> None:
        if self.lost is not None:
            raise closed_by(self.lost)
        try:
            await self._transport.send(message)
        except TransportClosed as error:
            self._finish(error)
            raise

    async def _read(self) -> None:
        end: ExecServerError = TransportClosed("the server ended the connection")
        try:
            while True:
                if self._gate.is_due():
                    await self._gate.hold_back()
                message = await self._transport.receive()
                if message is None:
                    return
                self._calls.take(message)
        except ExecServerError as error:
            end = kept(error)
        finally:
            self._finish(end)

    def _finish(self, error: ExecServerError) -> None:
        if self.lost is not None:
            return
        self.lost = lost = kept(error)
        self._tasks.cancel()  # the reader, unless it is who found out
        # Before the callers wake, so that those who call again already wait for the next connection.
        on_lost, self._on_lost = self._on_lost, None
        if on_lost is not None:
            on_lost(self, lost)
        self._calls.end_all(lost)


def _wake(answer: _Answer, outcome: Outcome) -> None:
    if not answer.done():  # a caller may have been cancelled and not have run since
        answer.set_result(outcome)


class Posted:
    """A request that was sent; somebody asks for its outcome later, or nobody does."""

    __slots__ = ("_answer", "_gate", "_method")

    def __init__(self, method: str, answer: _Answer, gate: Gate) -> None:
        self._method = method
        self._answer = answer
        self._gate = gate

    def watch(self, take: Callable[[Outcome], object]) -> None:
        """Have a function called with the outcome as well when it has come, unless it is given up."""
        self._answer.add_done_callback(lambda answer: None if answer.cancelled() else take(answer.result()))

    async def outcome(self, timeout: float | None = None) -> Outcome:
        """Wait for the answer, JSON text, or the error in its place.

        Raises `WaitTimeout` after `timeout` seconds; the answer is then ignored.
        """
        limit = asyncio.timeout(timeout)
        try:
            with self._gate.waiting():
                async with limit:
                    return await self._answer
        except TimeoutError:
            if timeout is None or not limit.expired():
                raise
            raise too_late(self._method, timeout) from None
