"""One connection: requests out, answers matched to them by id, notifications passed on in arrival order.

One greenlet reads; callers block in `request` while others run.  When the connection ends, for whatever
reason, every waiting caller gets `TransportClosed`, the transport is closed and the owner is called, once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol, TypeAlias, cast

import gevent
from gevent.event import AsyncResult

from execserver.client.carriers.transport import Transport
from execserver.client.errors import ExecServerError, TransportClosed, WaitTimeout, kept
from execserver.client.greenlets.flow import Gate
from execserver.client.rules import wire
from execserver.client.rules.calls import Calls, OnNotification, OnOutput, Outcome, closed_by
from execserver.client.rules.recovery import too_late
from execserver.eventloop.locks import BoundedSemaphore
from execserver.protocol.lifting import JsonText

_Answer: TypeAlias = "AsyncResult[Outcome]"


class Waiter(Protocol):
    """Who waits for an answer."""

    def set(self, value: Outcome) -> object:
        """Take the answer, or the error in its place; must not block."""


class ShortRequest(ABC):
    """A request for `Connection.send_short`, and the `Waiter` for its answer."""

    __slots__ = ("slots",)

    method: str
    slots: BoundedSemaphore  # of the connection on which it was sent; one of them is taken

    @abstractmethod
    def message(self, call_id: int) -> bytes:
        """Return what is sent."""

    @abstractmethod
    def set(self, value: Outcome) -> None:
        """Release the slot and take the answer (see `Waiter`)."""


OnLost: TypeAlias = Callable[["Connection", ExecServerError], None]


class Connection:
    """Owns one transport from `start` to `close` or to its end."""

    def __init__(
        self,
        transport: Transport,
        gate: Gate,
        max_in_flight: int,
        on_notification: OnNotification,
        on_output: OnOutput,
        on_lost: OnLost,
    ) -> None:
        self.lost: ExecServerError | None = None
        self._transport = transport
        self._gate = gate
        self._slots = BoundedSemaphore(max_in_flight)
        self._calls: Calls[Waiter] = Calls(_settle, on_notification, on_output)
        self._on_lost = on_lost
        self._reader: gevent.Greenlet[[], None] | None = None

    def start(self) -> None:
        """Start reading."""
        self._transport.take_at_once(self._take_at_once)
        self._reader = gevent.spawn(self._read)

    def request(self, method: str, params: object, timeout: float | None = None) -> JsonText:
        """Send a request and return its result as JSON text.

        Raises `RequestFailed` (or its subclass for the code), `TransportClosed`, or `WaitTimeout` after
        `timeout` seconds; a late answer is then ignored.
        """
        with gevent.Timeout(timeout, _limit(method, timeout)), self._gate.waiting(), self._slots:
            answer: _Answer = AsyncResult()
            call_id, message = self._calls.begin(method, params, answer)
            try:
                self._send(message)
                result = cast(Outcome, answer.get())
            finally:
                self._calls.forget(call_id)  # also after a timeout
            if isinstance(result, ExecServerError):
                raise kept(result)
            return result

    def post(self, method: str, params: object) -> Posted:
        """Send a request and return where its answer comes; also the error of a connection that is lost."""
        answer: _Answer = AsyncResult()
        call_id, message = self._calls.begin(method, params, answer)
        slots = self._slots
        try:
            with self._gate.waiting():
                slots.acquire()
            answer.rawlink(lambda _: slots.release())
            self._send(message)
        except ExecServerError as error:
            if not answer.ready():
                answer.set(kept(error))
        except BaseException:
            self._calls.forget(call_id)
            answer.set(TransportClosed("this was not sent"))  # nobody waits for it, but it may have a slot
            raise
        return Posted(answer, self._gate)

    def send_at_once(self, method: str, params: object, waiter: Waiter) -> bool:
        """Send a short request without waiting; return False, with nothing sent, where that cannot be.

        The answer, or the error in its place, goes to `waiter` in the event loop, where nothing may block.
        """
        return self.send_short(_Encoded(method, params, self._calls.takes_binary, waiter))

    def send_short(self, request: ShortRequest) -> bool:
        """Do as `send_at_once` with a request that makes its message itself, and takes the answer."""
        slots, calls, is_sent = self._slots, self._calls, False
        if self.lost is not None or not slots.acquire(False):
            return False
        try:
            is_sent = self._transport.send_at_once(request.message(calls.next_id))
        finally:
            # Behind that, so that the bytes leave earlier: no answer can be taken in between.
            if is_sent:
                request.slots = slots
                calls.enter(request.method, request)
            else:
                slots.release()
        return is_sent

    def notify(self, method: str, params: object) -> None:
        """Send a notification.  Raises `TransportClosed`."""
        self._send(wire.encode_notification(method, params))

    def use_binary(self) -> None:
        """Send long bytes without base64 from now on, if the transport carries them."""
        self._calls.takes_binary = self._transport.carries_binary

    def close(self) -> None:
        """End the connection; waiting callers get `TransportClosed`."""
        self._finish(TransportClosed("the connection was closed by this client"))

    def _send(self, message: bytes) -> None:
        if self.lost is not None:
            raise closed_by(self.lost)
        try:
            self._transport.send(message)
        except TransportClosed as error:
            self._finish(error)
            raise

    def _read(self) -> None:
        end: ExecServerError = TransportClosed("the server ended the connection")
        try:
            while True:
                self._gate.hold_back()
                message = self._transport.receive()
                if message is None:
                    return
                self._calls.take(message)
        except ExecServerError as error:
            end = kept(error)
        finally:
            self._finish(end)

    def _take_at_once(self, message: bytes) -> bool:
        """Take a message in the event loop, unless the reader has to stop, or something is wrong with it."""
        if self._gate.full:
            return False
        try:
            self._calls.take(message)
        except ExecServerError:
            return False  # nothing was done with it, and `_read` meets the error again
        return True

    def _finish(self, error: ExecServerError) -> None:
        if self.lost is not None:
            return
        self.lost = lost = kept(error)
        reader, self._reader = self._reader, None  # a killed greenlet holds this object by a traceback
        if reader is not None and reader is not gevent.getcurrent():
            reader.kill(block=False)
        # Before the callers wake, so that those who call again already wait for the next connection.
        self._on_lost(self, lost)
        self._calls.end_all(lost)
        self._transport.close()  # last: it may have to wait for a child to end


def _limit(method: str, timeout: float | None) -> WaitTimeout | None:
    return None if timeout is None else too_late(method, timeout)


def _settle(waiter: Waiter, outcome: Outcome) -> None:
    waiter.set(outcome)


class _Encoded(ShortRequest):
    """A request of a method and its params, whose answer somebody else takes."""

    __slots__ = ("_binary", "_params", "_waiter", "method")

    def __init__(self, method: str, params: object, binary: bool, waiter: Waiter) -> None:
        self.method = method
        self._params = params
        self._binary = binary
        self._waiter = waiter

    def message(self, call_id: int) -> bytes:
        """See `ShortRequest`.  Raises TypeError or ValueError for params that JSON cannot hold."""
        return wire.encode_request(call_id, self.method, self._params, binary=self._binary)

    def set(self, value: Outcome) -> None:
        """See `ShortRequest`."""
        self.slots.release()
        self._waiter.set(value)


class Posted:
    """A request that was sent; somebody asks for its outcome later, or nobody does."""

    __slots__ = ("_answer", "_gate")

    def __init__(self, answer: _Answer, gate: Gate) -> None:
        self._answer = answer
        self._gate = gate

    def outcome(self) -> Outcome:
        """Wait for the answer, JSON text, or the error in its place."""
        with self._gate.waiting():
            return cast(Outcome, self._answer.get())

    def watch(self, take: Callable[[Outcome], object]) -> None:
        """Have a function called with the outcome as well, in the event loop, when it has come."""
        self._answer.rawlink(lambda answer: take(cast(Outcome, answer.value)))
