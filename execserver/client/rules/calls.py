"""The calls of one connection that wait for their answers, and who gets what the server sends.  No I/O.

The owner of the connection sends the messages made here and brings those that arrive.  How a caller waits is
the owner's affair: it gives a waiter for each call, and `wake` passes a result or an error to one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

from execserver.client.errors import ExecServerError, ProtocolViolation, TransportClosed, request_failed
from execserver.client.rules import wire
from execserver.client.rules.event_log import Output
from execserver.client.rules.output_reader import OutputReader
from execserver.protocol.lifting import JsonText

W = TypeVar("W")

OnNotification: TypeAlias = Callable[[str, JsonText], None]
OnOutput: TypeAlias = Callable[[str, Output], None]
# An error is passed as a value: raised by the waiter itself, a frame of its own traceback would hold it.
Outcome: TypeAlias = "JsonText | ExecServerError"


class Calls(Generic[W]):
    """The table of one connection.  `wake` must not block; nor may the two callbacks of the owner."""

    def __init__(
        self, wake: Callable[[W, Outcome], object], on_notification: OnNotification, on_output: OnOutput
    ) -> None:
        self._wake = wake
        self._on_notification = on_notification
        self._on_output = on_output
        self._outputs = OutputReader()
        self._pending: dict[int, tuple[str, W]] = {}
        self.next_id = 1
        self.takes_binary = False  # whether the server reads the binary form of messages

    def __len__(self) -> int:
        return len(self._pending)

    def begin(self, method: str, params: object, waiter: W) -> tuple[int, bytes]:
        """Enter a call; return its id and the message to send.

        Raises TypeError or ValueError for params that JSON cannot hold; then there is no call.
        """
        message = wire.encode_request(self.next_id, method, params, binary=self.takes_binary)
        return self.enter(method, waiter), message

    def enter(self, method: str, waiter: W) -> int:
        """Enter a call whose message was made elsewhere, with `next_id`; return its id."""
        call_id = self.next_id
        self.next_id = call_id + 1
        self._pending[call_id] = method, waiter
        return call_id

    def forget(self, call_id: int) -> None:
        """Remove a call, answered or not; a late answer finds nobody."""
        self._pending.pop(call_id, None)

    def take(self, message: bytes) -> None:
        """Take one whole message of the server.  Raises `ProtocolViolation` for what it must not send."""
        output = self._outputs.read(message)
        if output is not None:
            self._on_output(*output)
            self._outputs.expect_next(*output)
            return
        accepted = wire.accepted_call(message)
        if accepted is not None:
            if (waiting := self._pending.pop(accepted, None)) is not None:
                self._wake(waiting[1], wire.ACCEPTED)
            return
        found = wire.decode_message(message)
        if isinstance(found, wire.Notification):
            self._on_notification(found.method, found.params)
        elif isinstance(found, wire.Response):
            self._answer(found.id, found.result)
        elif isinstance(found, wire.ErrorMessage):
            self._answer_error(found)
        else:
            raise ProtocolViolation(f"the server sent a request: {found.method}")

    def end_all(self, cause: ExecServerError) -> None:
        """Wake every caller with a `TransportClosed` of its own."""
        pending, self._pending = self._pending, {}
        for _, waiter in pending.values():
            self._wake(waiter, closed_by(cause))

    def _answer(self, call_id: int | str, result: JsonText) -> None:
        waiting = self._pending.pop(call_id, None) if isinstance(call_id, int) else None
        if waiting is not None:
            self._wake(waiting[1], result)

    def _answer_error(self, message: wire.ErrorMessage) -> None:
        code, text, data = message.error.code, message.error.message, wire.error_data(message)
        if message.id == wire.MALFORMED_ID:
            # The server could not read a message of ours and cannot say which: it may be any waiting call.
            victims = list(self._pending)
        else:
            victims = [message.id] if isinstance(message.id, int) and message.id in self._pending else []
        for call_id in victims:
            method, waiter = self._pending.pop(call_id)
            self._wake(waiter, request_failed(code, text, method, data))


def closed_by(cause: ExecServerError) -> TransportClosed:
    """Return a fresh error for one caller: an exception that several raise would mix their tracebacks."""
    error = TransportClosed(str(cause))
    error.__cause__ = cause
    return error
