"""Serves one client, whatever carries its messages.

Messages arrive in the event loop and wait in an inbox; one greenlet handles them strictly in order, except
that an answer which has to wait for something gets a greenlet of its own and delays nobody.  Because
reading goes on while a request is handled, the end of the client is noticed at once and its session
detached then, whatever the greenlet is busy with.  What was received before the end is still handled: a
client may ask to terminate a process and leave.

Bounds: past `INBOX_BYTES` of unhandled messages reading stops; past `REPLY_BYTES` of unsent answers
handling stops.  At `MAX_WAITING` answers that wait, or `WAITING_BYTES` of requests they belong to, a further
one waits in line, as every request does at the reference server.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from itertools import chain

from gevent import Greenlet, getcurrent, sleep
from gevent.hub import Waiter, get_hub

from execserver.core.connection import ProtocolViolation
from execserver.handlers.context import Call
from execserver.handlers.dispatch import dispatch
from execserver.handlers.guard import guarded
from execserver.handlers.replies import Answer, InParts, Later, Reply, Result, Streamed
from execserver.protocol.envelope import (
    MALFORMED_ID,
    MalformedMessage,
    Notification,
    Request,
    around_result,
    encode_error,
    encode_result,
    parse_message,
)
from execserver.protocol.errors import InvalidRequest, RpcError
from execserver.transports.transport import Transport
from execserver.wire.websocket import INTERNAL_ERROR, INVALID_DATA, POLICY_VIOLATION

_log = logging.getLogger(__name__)

INBOX_BYTES = 1024 * 1024
REPLY_BYTES = 1024 * 1024
MAX_WAITING = 256
WAITING_BYTES = 16 * 1024 * 1024  # each may hold a message of input or of an upload
_TURN_MESSAGES = 64  # after as many messages other greenlets get a turn


class _Unreadable(Exception):
    """A message is none, on a carrier where that ends the connection."""


class Connection:
    """One client.  A transport delivers to it what arrives; a greenlet calls `run`."""

    def __init__(self, transport: Transport, call: Call) -> None:
        self._transport = transport
        self._outbox = transport.outbox
        self._call = call
        self._hub = get_hub()
        self._inbox: deque[bytes] = deque()
        self._inbox_bytes = 0
        self._paused = False
        self._over = False  # no further message comes in
        self._idle: Waiter[None] | None = None
        self._waiting: dict[Greenlet[[Request, Later], None], int] = {}  # and the bytes of each request
        self._waiting_bytes = 0

    def receive(self, messages: list[bytes]) -> None:
        """Take messages that arrived.  Called in the event loop."""
        if self._over:
            return
        self._inbox.extend(messages)
        self._inbox_bytes += sum(map(len, messages))
        self._wake()
        if self._inbox_bytes > INBOX_BYTES and not self._over:
            self._paused = True
            self._transport.pause()

    def ended(self) -> None:
        """Note that the client is gone or said goodbye: its session can be resumed from now on."""
        if self._over:
            return
        self._over = True
        self._call.detach()
        self._abandon_waiting()
        self._wake()

    def _wake(self) -> None:
        idle, self._idle = self._idle, None
        if idle is None:
            return
        if getcurrent() is self._hub:
            idle.switch(None)
        else:
            self._hub.loop.run_callback(idle.switch, None)

    def run(self) -> None:
        """Handle messages in this greenlet until the client is gone and its last one was handled."""
        try:
            while self._next_batch():
                self._handle_inbox()
                self._outbox.flush()
        except ProtocolViolation as violation:
            self._fail(POLICY_VIOLATION, str(violation))
        except _Unreadable as error:
            self._fail(INVALID_DATA, str(error))
        except Exception:  # the one other place that catches everything: others must not be taken along
            _log.exception("a connection failed")
            self._fail(INTERNAL_ERROR, "internal error")
        finally:
            self._finish()

    def _next_batch(self) -> bool:
        while not self._inbox:
            if self._over:
                return False
            self._idle = Waiter()
            self._idle.get()
        return True

    def _handle_inbox(self) -> None:
        inbox = self._inbox
        turn = _TURN_MESSAGES
        while inbox:
            message = inbox.popleft()
            self._inbox_bytes -= len(message)
            self._handle(message)
            if self._paused and self._inbox_bytes <= INBOX_BYTES // 2:
                self._paused = False
                self._transport.resume()
            if self._outbox.queued > REPLY_BYTES:
                self._outbox.wait_for_room()
            turn -= 1
            if not turn:
                turn = _TURN_MESSAGES
                self._outbox.flush()
                sleep(0)

    def _handle(self, text: bytes) -> None:
        try:
            message = parse_message(text)
        except MalformedMessage as error:
            prefix = self._transport.malformed_prefix
            if not prefix:
                raise _Unreadable(error.reason) from None
            reason = InvalidRequest(f"{prefix}: {error.reason}")
            self._outbox.send(encode_error(MALFORMED_ID, reason))
            return
        if isinstance(message, Request):
            self._answer(message)
        elif isinstance(message, Notification):
            self._call.connection.rules.notification(message.method)
        else:
            raise ProtocolViolation("a server takes no responses")

    def _answer(self, request: Request) -> None:
        try:
            answer = guarded(request.method, lambda: _started(dispatch(self._call, request)))
        except RpcError as error:
            self._outbox.send(encode_error(request.id, error))
            return
        if isinstance(answer, Later):
            self._answer_later(request, answer)
        elif isinstance(answer, Streamed):
            self._stream(request.id, answer.pieces)
        else:
            self._send_answer(request.id, answer)

    def _send_answer(self, request_id: int | str, answer: Answer) -> None:
        if isinstance(answer, Reply):
            self._send_result(request_id, answer.result)
            answer.then()
        else:
            assert not isinstance(answer, Later | Streamed)
            self._send_result(request_id, answer)

    def _send_result(self, request_id: int | str, result: Result) -> None:
        if isinstance(result, InParts):
            head, tail = around_result(request_id)
            self._outbox.send_parts(head, *result.parts, tail)
        else:
            self._outbox.send(encode_result(request_id, result))

    def _answer_later(self, request: Request, later: Later) -> None:
        if self._over:
            return
        in_line = len(self._waiting) >= MAX_WAITING or self._waiting_bytes > WAITING_BYTES
        greenlet = Greenlet(self._wait_and_answer, request, later)
        self._waiting[greenlet] = len(request.params)
        self._waiting_bytes += len(request.params)
        greenlet.link(self._waited)
        greenlet.start()
        if in_line:
            greenlet.join()

    def _waited(self, greenlet: Greenlet[[Request, Later], None]) -> None:
        self._waiting_bytes -= self._waiting.pop(greenlet)

    def _wait_and_answer(self, request: Request, later: Later) -> None:
        try:
            self._send_answer(request.id, guarded(request.method, later.run))
        except RpcError as error:
            self._outbox.send(encode_error(request.id, error))

    def _stream(self, request_id: int | str, pieces: Iterator[bytes]) -> None:
        """Send a result in pieces; a failure in the middle cannot be answered and ends the connection."""
        head, tail = around_result(request_id)
        self._outbox.stream(chain((head,), pieces, (tail,)))

    def _fail(self, code: int, reason: str) -> None:
        self._inbox.clear()
        self._transport.close(code, reason)
        self.ended()

    def _finish(self) -> None:
        self.ended()
        self._call.detach()  # a session that was opened by what came before the end
        self._call.connection.close()

    def _abandon_waiting(self) -> None:
        """Wait for nothing any more: nobody would hear the answers."""
        for greenlet in list(self._waiting):
            greenlet.kill(block=False)


def _started(answer: Answer) -> Answer:
    """Produce the first piece of a result in pieces now, while a failure can still become an error."""
    if not isinstance(answer, Streamed):
        return answer
    first = next(answer.pieces, b"")
    return Streamed(chain((first,), answer.pieces))
