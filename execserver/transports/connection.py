"""Serves one client, over any transport.

Messages wait in an inbox (`inbox`, with its limits) and are handled strictly in order: in the event loop as
long as nothing has to wait, else by one greenlet, which is made when it is first needed.  An answer that has
to wait for something gets a greenlet of its own and delays no other request.  Reading goes on while a request
is handled, so the server notices the end of a client at once and detaches its session, whatever the greenlet
is doing.  What was received before the end is still handled: a client may ask to terminate a process and
leave.  A server asked for one request at a time lets each wait for the one before, as the reference does.

Limits: at `MAX_WAITING` waiting answers, or `WAITING_BYTES` of the requests they belong to, a further one
waits in line.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TypeVar

from gevent import Greenlet

from execserver.core.connection import ProtocolViolation
from execserver.handlers import replies
from execserver.handlers.context import Call
from execserver.handlers.dispatch import dispatch
from execserver.handlers.guard import attempted, guarded
from execserver.handlers.replies import Answer, InBinary, InTurn, Later, Reply, Result, Special, Streamed
from execserver.protocol.envelope import (
    MALFORMED_ID,
    ErrorMessage,
    MalformedMessage,
    Notification,
    Request,
    Response,
    around_result,
    encode_again,
    encode_error,
    encode_result,
    parse_message,
)
from execserver.protocol.errors import InternalError, InvalidRequest, RpcError
from execserver.protocol.lifting import binary_head
from execserver.protocol.own_methods import PORT_ACK
from execserver.protocol.record import encode_record
from execserver.transports.inbox import Inbox
from execserver.transports.transport import Transport
from execserver.wire.close_codes import INTERNAL_ERROR, INVALID_DATA, POLICY_VIOLATION

_log = logging.getLogger(__name__)

MAX_WAITING = 256
WAITING_BYTES = 16 * 1024 * 1024  # each request may hold up to 64 MiB of input or of an upload


def connection_over(
    transport: Transport, call: Call, on_end: Callable[[], object] = lambda: None
) -> Connection:
    """Return a connection that works on as many requests at a time as the server is asked to."""
    several = call.connection.concurrent_requests > 1
    if call.services.observer is not None:
        from execserver.transports import metering  # late, as the next one: few ask for it

        kind = metering.MeteredConcurrentConnection if several else metering.MeteredConnection
        return kind(transport, call, on_end)
    if several:
        from execserver.transports.concurrent import ConcurrentConnection

        return ConcurrentConnection(transport, call, on_end)
    return Connection(transport, call, on_end)


T = TypeVar("T")
# Nobody waits for the answer to an acknowledgment: a stream would be slowed down by its own.
_WITHOUT_HASTE = PORT_ACK.name


class _Unreadable(Exception):
    """A malformed message, on a transport where that ends the connection."""


class Connection:
    """One client, to which its transport delivers what arrives.

    `on_end` is called once the client is gone and its last message was handled.
    """

    def __init__(self, transport: Transport, call: Call, on_end: Callable[[], object] = lambda: None) -> None:
        self._transport = transport
        self._outbox = transport.outbox
        self._call = call
        self._questions = call.connection.questions
        self._busy_poll = call.services.busy_poll
        self._on_end: Callable[[], object] | None = on_end
        self._inbox = Inbox(transport, self._handle_at_once)
        self._in_line = call.connection.concurrent_requests == 1
        self._worker: Greenlet[[], None] | None = None  # made for the first message that may have to wait
        # The inbox's first message, if the loop has begun with it and left the rest to the greenlet.
        self._begun: tuple[Request, Answer] | None = None
        self._in_hand: Request | None = None  # what the greenlet works on, and is not in `_waiting`
        self._waiting: dict[Greenlet[[Request, Later], None], tuple[Request, Later]] = {}
        self._waiting_bytes = 0  # of all those requests

    def receive(self, messages: list[bytes]) -> None:
        """Take messages that arrived.  Called in the event loop."""
        if self._questions.unanswered:
            # At once: what is before an answer may be a request that waits for what the answer allows.
            messages = [message for message in messages if not self._is_answer(message)]
        inbox = self._inbox
        self._served(inbox.receive, messages)
        if inbox.waiting or inbox.over:
            self._go_on()
        elif len(messages) == 1:  # of several, more are on their way, and come together while the loop sleeps
            self._busy_poll.handled()

    def ended(self) -> None:
        """Take the end of the client: from now on its session can be resumed.

        Called in the event loop when the client is gone or has sent a Close frame; further calls do nothing.
        """
        if self._inbox.over:
            return
        self._inbox.over = True
        # At once, not after the messages that still wait: a client that comes back resumes within moments.
        self._call.detach()
        self._abandon_waiting()
        self._inbox.end()
        self._go_on()

    def join(self, timeout: float) -> None:
        """Wait at most `timeout` seconds for the messages that are being handled."""
        if self._worker is not None:
            self._worker.join(timeout)

    # On the way to the program that takes this server's place:

    def hold(self) -> None:
        """Begin with no further message; what is worked on goes on."""
        self._inbox.hold()

    def release(self) -> None:
        """Handle messages again."""
        self._inbox.release()
        self._go_on()

    @property
    def unfinished(self) -> list[Request]:
        """The requests that are worked on, and that another server cannot be asked instead."""
        waiting = [request for request, later in self._still_waiting() if not later.repeats]
        return waiting if self._in_hand is None else [self._in_hand, *waiting]

    def fail_unfinished(self, reason: str) -> None:
        """Answer them with an error: nobody will finish them."""
        for request in self.unfinished:
            self._refuse(request, InternalError(reason))
        self._call.connection.http_streams.interrupt(reason)

    def pack_messages(self) -> list[bytes]:
        """Return what another server has to handle, oldest first."""
        waiting = [_again(*asked) for asked in self._still_waiting() if asked[1].repeats]
        return [*waiting, *self._inbox.waiting]

    def _still_waiting(self) -> list[tuple[Request, Later]]:
        # One that has answered is in there until the loop has told of its end.
        return [asked for greenlet, asked in self._waiting.items() if not greenlet.ready()]

    @property
    def call(self) -> Call:
        """The context of its requests."""
        return self._call

    def _go_on(self) -> None:
        """Make the greenlet if messages are left for it; without one, see whether this is the end."""
        if self._worker is not None or self._inbox.is_handled:
            return
        if self._inbox.waiting:
            self._worker = Greenlet.spawn(self._serve)
        elif self._inbox.over:
            self._finish()

    def _serve(self) -> None:
        """Handle messages in this greenlet until the client is gone and its last message was handled."""
        try:
            self._served(self._handle_all, self._inbox)
        finally:
            self._finish()

    def _handle_all(self, inbox: Inbox) -> None:
        while inbox.wait():
            inbox.handle_all(self._handle)
            self._outbox.flush()  # the answers leave now, not in a further turn of the loop

    def _served(self, act: Callable[[T], object], what: T) -> None:
        """Run a part of what this connection does, and end the connection for what it raises."""
        try:
            act(what)
        except ProtocolViolation as violation:
            self._fail(POLICY_VIOLATION, str(violation))
        except _Unreadable as error:
            self._fail(INVALID_DATA, str(error))
        except Exception:  # besides `guarded` the only catch-all: it must not take other connections along
            _log.exception("a connection failed")
            self._fail(INTERNAL_ERROR, "internal error")

    def _handle_at_once(self, text: bytes) -> bool:
        """Handle a message in the event loop; return False if the greenlet has to do that."""
        try:
            message = parse_message(text)
            if isinstance(message, Request):
                return self._answer_at_once(message)
            if isinstance(message, Notification):
                self._call.connection.rules.notification(message.method)
                return True
            return self._questions.answered(message)
        except (MalformedMessage, ProtocolViolation):
            pass  # the greenlet says so, and may have to wait for that
        return False

    def _answer_at_once(self, request: Request) -> bool:
        if request.method != _WITHOUT_HASTE:
            self._outbox.asked()
        answer = self._dispatched(request)
        if answer is None:
            return True
        if not isinstance(answer, Special) or isinstance(answer, Reply):
            self._send_answer(request, answer, alone=not self._inbox.waiting)
            return True
        if isinstance(answer, InTurn) or (isinstance(answer, Later) and self._is_full):
            self._begun = request, answer
            return False
        self._give(request, answer)
        return True

    def _handle(self, text: bytes) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            self._in_hand = begun[0]
            self._give(*begun)
            self._in_hand = None
            return
        try:
            message = parse_message(text)
        except MalformedMessage as error:
            prefix = self._transport.malformed_prefix
            # Which of the two happens is the transport's: over a relay the reference ends the stream.
            if not prefix:
                raise _Unreadable(error.reason) from None
            reason = InvalidRequest(f"{prefix}: {error.reason}")
            self._outbox.send(encode_error(MALFORMED_ID, reason))
            return
        if isinstance(message, Request):
            if message.method != _WITHOUT_HASTE:
                self._outbox.asked()
            self._in_hand = message
            self._answer(message)
            self._in_hand = None
        elif isinstance(message, Notification):
            self._call.connection.rules.notification(message.method)
        elif not self._questions.answered(message):
            raise ProtocolViolation("a response that answers no request of the server")

    def _is_answer(self, text: bytes) -> bool:
        """Take an answer to a question; return False for any other message."""
        try:
            message = parse_message(text)
        except MalformedMessage:
            return False
        return isinstance(message, Response | ErrorMessage) and self._questions.answered(message)

    def _answer(self, request: Request) -> None:
        answer = self._dispatched(request)
        if answer is not None:
            self._give(request, answer)

    def _dispatched(self, request: Request) -> Answer | None:
        """Return the handler's answer; None after an error answer."""
        answer = attempted(request.method, dispatch, self._call, request)
        if isinstance(answer, RpcError):
            try:
                self._refuse(request, answer)
                return None
            finally:
                del answer  # its traceback holds this frame: a reference cycle
        return answer

    def _refuse(self, request: Request, error: RpcError) -> None:
        self._outbox.send(encode_error(request.id, error))

    def _give(self, request: Request, answer: Answer) -> None:
        """Send an answer, for which this greenlet may have to wait."""
        if isinstance(answer, InTurn):
            produced = attempted(request.method, replies.started_by, answer.run)
            if isinstance(produced, RpcError):
                try:
                    self._refuse(request, produced)
                    return
                finally:
                    del produced  # as above
            assert not isinstance(produced, InTurn)
            answer = produced
        if isinstance(answer, Later):
            self._answer_later(request, answer)
        elif isinstance(answer, Streamed):
            self._stream(request, answer.pieces)
        else:
            self._send_answer(request, answer)

    def _send_answer(self, request: Request, answer: Result | Reply, *, alone: bool = False) -> None:
        """Send an answer; one that is `alone` has none behind it with which it could be written."""
        if alone and not isinstance(answer, Special):
            text = encode_result(request.id, answer)
            if not self._outbox.try_send(text):
                self._outbox.send(text)
        elif isinstance(answer, Reply):
            # In this order, so that a notification never comes before the answer that announces it.
            self._send_result(request.id, answer.result)
            if answer.leaves_first and not self._inbox.waiting:
                self._outbox.flush()
            answer.then()
        else:
            self._send_result(request.id, answer)

    def _send_result(self, request_id: int | str, result: Result) -> None:
        if not isinstance(result, Special):
            self._outbox.send(encode_result(request_id, result))
        elif isinstance(result, InBinary):
            self._outbox.send_binary(binary_head(result.text.join(around_result(request_id))), result.data)
        else:
            head, tail = around_result(request_id)
            self._outbox.send_parts(head, *result.parts, tail)

    def _answer_later(self, request: Request, later: Later) -> None:
        if self._inbox.over:  # requests handled after the end get no answer, so nothing needs to wait
            return
        in_line = self._is_full
        greenlet = Greenlet(self._wait_and_answer, request, later)
        self._waiting[greenlet] = request, later
        if self._in_hand is request:  # else others of a concurrent connection have something in hand
            self._in_hand = None
        self._waiting_bytes += len(request.params)
        greenlet.link(self._waited)
        greenlet.start()
        # Start first and join then: waits begin in the order of their requests, even at the limit, and
        # `_abandon_waiting` finds this one, too.
        if in_line:
            greenlet.join()

    @property
    def _is_full(self) -> bool:
        """True if a further answer that waits has to wait in line."""
        return self._in_line or len(self._waiting) >= MAX_WAITING or self._waiting_bytes > WAITING_BYTES

    def _waited(self, greenlet: Greenlet[[Request, Later], None]) -> None:
        request, _ = self._waiting.pop(greenlet)
        self._waiting_bytes -= len(request.params)

    def _wait_and_answer(self, request: Request, later: Later) -> None:
        try:
            self._send_answer(request, guarded(request.method, later.run))
        except RpcError as error:
            self._refuse(request, error)

    def _stream(self, request: Request, pieces: Iterator[bytes]) -> None:
        """Send a result in pieces; a failure between them cannot be answered and ends the connection."""
        head, tail = around_result(request.id)
        self._outbox.stream(chain((head,), pieces, (tail,)))

    def _fail(self, code: int, reason: str) -> None:
        self._inbox.clear()
        self._transport.close(code, reason)
        self.ended()

    def _finish(self) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is None:
            return
        self.ended()
        self._inbox.let_go()
        try:
            # Again: a request that was handled after the end may have opened a session, which would stay
            # attached to a connection that no longer exists.
            self._call.detach()
            self._call.connection.close()
        finally:
            on_end()

    def _abandon_waiting(self) -> None:
        """Abandon all answers that wait: no client would receive them."""
        # `block=False`: this runs in the event loop, which must not wait for greenlets.
        for greenlet in list(self._waiting):
            greenlet.kill(block=False)


def _again(request: Request, later: Later) -> bytes:
    """Return a request in a form that asks for what is left to wait for."""
    return encode_again(request, bytes(request.params) if later.rest is None else encode_record(later.rest()))
