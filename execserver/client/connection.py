"""One connection: requests out, answers matched to them by id, notifications passed on in arrival order.

One greenlet reads; callers block in `request` while others run.  When the connection ends, for whatever
reason, every waiting caller gets `TransportClosed`, the transport is closed and the owner is called, once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, cast

import gevent
import msgspec
from gevent.event import AsyncResult

from execserver.client import wire
from execserver.client.errors import (
    ExecServerError,
    ProtocolViolation,
    TransportClosed,
    WaitTimeout,
    kept,
    request_failed,
)
from execserver.client.event_log import Output
from execserver.client.flow import Gate
from execserver.client.transport import Transport
from execserver.eventloop.locks import BoundedSemaphore

OnNotification: TypeAlias = Callable[[str, msgspec.Raw], None]
OnOutput: TypeAlias = Callable[[str, Output], None]
# An error is passed as a value: raised by the result itself, a frame of its own traceback would hold it.
_Answer: TypeAlias = "AsyncResult[msgspec.Raw | ExecServerError]"
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
        self._on_notification = on_notification
        self._on_output = on_output
        self._on_lost = on_lost
        self._pending: dict[int, tuple[str, _Answer]] = {}
        self._last_id = 0
        self._reader: gevent.Greenlet[[], None] | None = None

    def start(self) -> None:
        """Start reading."""
        self._reader = gevent.spawn(self._read)

    def request(self, method: str, params: object, timeout: float | None = None) -> msgspec.Raw:
        """Send a request and return its result as JSON text.

        Raises `RequestFailed` (or its subclass for the code), `TransportClosed`, or `WaitTimeout` after
        `timeout` seconds; a late answer is then ignored.
        """
        with gevent.Timeout(timeout, _too_late(method, timeout)), self._gate.waiting(), self._slots:
            self._last_id += 1
            call_id = self._last_id
            message = wire.encode_request(call_id, method, params)
            answer: _Answer = AsyncResult()
            self._pending[call_id] = (method, answer)
            try:
                self._send(message)
                result = cast(msgspec.Raw | ExecServerError, answer.get())
            finally:
                self._pending.pop(call_id, None)  # also after a timeout: a late answer finds nobody
            if isinstance(result, ExecServerError):
                raise kept(result)
            return result

    def notify(self, method: str, params: object) -> None:
        """Send a notification.  Raises `TransportClosed`."""
        self._send(wire.encode_notification(method, params))

    def close(self) -> None:
        """End the connection; waiting callers get `TransportClosed`."""
        self._finish(TransportClosed("the connection was closed by this client"))

    def _send(self, message: bytes) -> None:
        if self.lost is not None:
            raise _closed_by(self.lost)
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
                output = wire.decode_output(message)
                if output is not None:
                    self._on_output(*output)
                else:
                    self._dispatch(wire.decode_message(message))
        except ExecServerError as error:
            end = kept(error)
        finally:
            self._finish(end)

    def _dispatch(self, message: wire.Message) -> None:
        if isinstance(message, wire.Notification):
            self._on_notification(message.method, message.params)
        elif isinstance(message, wire.Response):
            self._answer(message.id, message.result)
        elif isinstance(message, wire.ErrorMessage):
            self._answer_error(message)
        else:
            raise ProtocolViolation(f"the server sent a request: {message.method}")

    def _answer(self, call_id: int | str, result: msgspec.Raw) -> None:
        waiting = self._pending.pop(call_id, None) if isinstance(call_id, int) else None
        if waiting is not None:
            waiting[1].set(result)

    def _answer_error(self, message: wire.ErrorMessage) -> None:
        code, text = message.error.code, message.error.message
        if message.id == wire.MALFORMED_ID:
            # The server could not read a message of ours and cannot say which: it may be any waiting call.
            victims = list(self._pending)
        else:
            victims = [message.id] if isinstance(message.id, int) and message.id in self._pending else []
        for call_id in victims:
            method, answer = self._pending.pop(call_id)
            answer.set(request_failed(code, text, method))

    def _finish(self, error: ExecServerError) -> None:
        if self.lost is not None:
            return
        self.lost = lost = kept(error)
        reader, self._reader = self._reader, None  # a killed greenlet holds this object by a traceback
        if reader is not None and reader is not gevent.getcurrent():
            reader.kill(block=False)
        pending, self._pending = self._pending, {}
        # Before the callers wake, so that those who call again already wait for the next connection.
        self._on_lost(self, lost)
        for _, answer in pending.values():
            answer.set(_closed_by(lost))
        self._transport.close()  # last: it may have to wait for a child to end


def _closed_by(cause: ExecServerError) -> TransportClosed:
    """Return a fresh error for one caller: an exception that several raise would mix their tracebacks."""
    error = TransportClosed(str(cause))
    error.__cause__ = cause
    return error


def _too_late(method: str, timeout: float | None) -> WaitTimeout | None:
    return None if timeout is None else WaitTimeout(f"{method} was not answered within {timeout:g} s")
