"""Response bodies on their way to the client: whole inside a result, or piece by piece behind it."""

from __future__ import annotations

from collections.abc import Callable

import gevent
import msgspec

from execserver.http_client.fetch import Answer, DeadlinePassed
from execserver.http_client.response_events import BrokenResponse, ResponseHead
from execserver.protocol import base64
from execserver.protocol.errors import InternalError
from execserver.protocol.http import HttpRequestResponse
from execserver.protocol.record import encode_record
from execserver.protocol.templates import BodyDeltaTemplates
from execserver.services.clients.sink import MessageSink
from execserver.services.http.contract_headers import shown_headers

_FAILED_TO_READ = "failed to read http/request response body"
_UNREADABLE = "error decoding response body"
_ENVELOPE_BYTES = 64 * 1024  # kept free for the message around the result


class Budget:
    """A number of bytes that all buffered bodies share."""

    def __init__(self, limit: int) -> None:
        self._left = limit

    def take(self, size: int) -> bool:
        """Take `size` bytes, or return False if fewer are left."""
        if size > self._left:
            return False
        self._left -= size
        return True

    def give_back(self, size: int) -> None:
        """Return what was taken."""
        self._left += size


class BodyStream:
    """One streamed body: `result` is the answer that goes first, `start` sends the body behind it.

    Owns the exchange.  The last message says `done`, with the error if the body was cut.  `on_end` is called
    at the end of the body, before that message.  A closed stream sends nothing more.
    """

    def __init__(
        self, request_id: str, answer: Answer, sink: MessageSink, on_end: Callable[[], object]
    ) -> None:
        self.result = msgspec.Raw(_head_json(answer.head) + b'""}')
        self._answer = answer
        self._sink = sink
        self._templates = BodyDeltaTemplates(request_id)
        self._on_end = on_end
        self._pump: gevent.Greenlet[..., None] | None = None
        self._seq = 0
        self._closed = False

    def start(self) -> None:
        """Start sending the body."""
        if not self._closed:
            self._pump = gevent.spawn(self._run)

    def close(self) -> None:
        """End the stream at once."""
        self._closed = True
        # A killed greenlet keeps the traceback of its end, whose frames hold this stream: a reference cycle.
        pump, self._pump = self._pump, None
        if pump is not None:
            pump.kill(block=False)
        self._answer.exchange.close()

    def interrupt(self, reason: str) -> None:
        """End the stream with a last message that says why."""
        if not self._closed:
            self.close()
            self._seq += 1
            self._sink.send(self._templates.last(self._seq, reason))

    def _run(self) -> None:
        error = None
        try:
            with self._answer.deadline.running():
                self._send_pieces()
        except (BrokenResponse, DeadlinePassed):
            error = _UNREADABLE
        finally:
            self._answer.exchange.close()
            self._on_end()
        if not self._closed:
            self._seq += 1
            self._sink.send(self._templates.last(self._seq, error))

    def _send_pieces(self) -> None:
        while piece := self._answer.exchange.read():
            self._seq += 1
            self._sink.send_parts(*self._templates.piece(self._seq, piece))
            gevent.sleep(0)  # a read of what has arrived already does not switch greenlets
            if not self._sink.wait_for_room():
                return


def buffered_result(answer: Answer, message_bytes: int, budget: Budget) -> msgspec.Raw:
    """Return the result with the whole body, and close the exchange; raise InternalError.

    `message_bytes` is the longest message with the result; all buffered bodies share `budget`.
    """
    exchange = answer.exchange
    text = _ResultText(_head_json(answer.head), message_bytes - _ENVELOPE_BYTES, budget)
    try:
        with answer.deadline.running():
            text.expect(_announced(answer.head))
            while piece := exchange.read():
                text.add(piece)
                gevent.sleep(0)
        return text.finish()
    except (BrokenResponse, DeadlinePassed):
        raise InternalError(f"{_FAILED_TO_READ}: {_UNREADABLE}") from None
    finally:
        exchange.close()
        text.give_back()


class _ResultText:
    """The JSON text of a result, which grows with its body; the body itself is not kept."""

    def __init__(self, head: bytes, limit: int, budget: Budget) -> None:
        self._text = bytearray(head + b'"')
        self._rest = b""  # up to two bytes: base64 encodes three at a time
        self._limit = limit
        self._budget = budget
        self._taken = 0
        self._expected = 0

    def expect(self, size: int) -> None:
        """Remember the announced size, so that too large a body is refused with its first piece."""
        self._expected = size

    def add(self, piece: bytes) -> None:
        """Append a piece of the body; raise InternalError at a limit."""
        self._check(max(len(piece), self._expected - self._taken))
        if not self._budget.take(len(piece)):
            raise InternalError(f"{_FAILED_TO_READ}: too many buffered responses at a time")
        self._taken += len(piece)
        piece = self._rest + piece
        whole = len(piece) - len(piece) % 3
        self._rest = piece[whole:]
        self._text += base64.encode(piece[:whole])

    def finish(self) -> msgspec.Raw:
        """Return the whole text."""
        self._text += base64.encode(self._rest) + b'"}'
        return msgspec.Raw(bytes(self._text))

    def give_back(self) -> None:
        """Give back to the budget what was taken from it."""
        self._budget.give_back(self._taken)

    def _check(self, further: int) -> None:
        if len(self._text) + (further + 4) * 4 // 3 > self._limit:
            raise InternalError(
                f"{_FAILED_TO_READ}: the result would be larger than {self._limit} bytes; "
                "streamResponse has no such limit"
            )


def _announced(head: ResponseHead) -> int:
    """Return the content length that the head names, 0 without one."""
    # Some answers name a length and have no body (to HEAD, 304), so this alone must refuse nothing.
    length = head.first(b"content-length")
    return 0 if length is None or head.first(b"transfer-encoding") is not None else int(length)


def _head_json(head: ResponseHead) -> bytes:
    """Return the JSON text of a result up to its body."""
    headers = tuple(shown_headers(head.lines))
    return encode_record(HttpRequestResponse(status=head.status, headers=headers, body_base64=b""))[:-3]
