"""One plain request and its answer, between a process and the server it asked.

The body of the request goes up while the answer comes down: a server may answer before it has read
everything.  The answer's framing is read strictly and written anew, so that what the process takes for the
end of an answer is its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import gevent

from execserver.egress.http_bodies import LAST_CHUNK, Chunks, chunk
from execserver.egress.http_heads import (
    CHUNKED,
    NO_BODY,
    UNTIL_CLOSE,
    BadHead,
    Body,
    RequestHead,
    ResponseHead,
    head_length,
    parse_response,
    written,
)
from execserver.eventloop.turns import give_way
from execserver.services.egress.streams import READ_BYTES, Incoming

if TYPE_CHECKING:
    from execserver.eventloop.ends import End

_ANSWER_S = 3600.0  # until a server begins to answer; the process may give up sooner
_HEAD_S = 30.0  # then for the rest of its head
_SWITCHING = 101
_MAX_INTERIM = 256  # answers before the real one
_MANY_CHUNKS = 256  # in one read: then less is read at a time, and others have their turn
_FEW_BYTES = 4096

Framing = tuple[Body, int]


class UpstreamFailed(Exception):
    """The server did not answer as it must; `can_be_answered` as long as the process has heard nothing."""

    def __init__(self, *, can_be_answered: bool) -> None:
        super().__init__("upstream failure")
        self.can_be_answered = can_be_answered


class Exchange:
    """A request on its way; both sockets are the caller's."""

    def __init__(self, client: Incoming, upstream: End, request: RequestHead, *, closes: bool) -> None:
        self._client = client
        self._upstream = Incoming(upstream)
        self._request = request
        self._closes = closes
        self._answered = False
        self._heard = False
        self._stays_open = False

    @property
    def heard_nothing(self) -> bool:
        """True as long as the server has sent nothing."""
        return not (self._heard or self._upstream.buffer)

    @property
    def leaves_open(self) -> bool:
        """True once the server has answered all that was asked and no more, and waits for what follows."""
        return self._stays_open and not self._upstream.buffer

    def run(self, head: bytes, framing: Framing) -> bool:
        """Pass the request on and the answer back; return whether another request may follow.

        Raises UpstreamFailed, and OSError if the client's connection breaks.
        """
        if framing[0] is NO_BODY:
            self._send_request(head, framing)
            self._pass_answer()
            return not self._closes
        upload = gevent.Greenlet.spawn(self._send_request, head, framing)
        try:
            self._pass_answer()
            upload.join(0)
            return not self._closes and upload.ready() and upload.value is True
        finally:
            upload.kill()

    def _pass_answer(self) -> None:
        response = self._final_head()
        kind, size = self._checked(response)
        is_endless = kind is UNTIL_CLOSE and self._request.minor == 0
        self._closes = self._closes or is_endless
        self._pass_body(self._head_for_client(response, kind), kind, size)
        self._stays_open = kind is not UNTIL_CLOSE and response.minor == 1 and response.keeps_alive

    def _send_request(self, head: bytes, framing: Framing) -> bool:
        """Return whether all of the request was sent; a failure shows in the answer that does not come."""
        sock = self._upstream.sock
        try:
            sock.sendall(head)
            return _copy_body(self._client, framing, sock.sendall)
        except BadHead:
            sock.close()  # what would follow is not what the head has promised
            return False
        except OSError:
            return False

    def _final_head(self) -> ResponseHead:
        for _ in range(_MAX_INTERIM):
            response = self._head()
            if not response.is_interim:
                return response
            if response.status == _SWITCHING:
                break
            if self._request.minor:
                self._answered = True
                self._client.sock.sendall(_status_line(response, response.passed_on()))
        raise UpstreamFailed(can_be_answered=not self._answered)

    def _head(self) -> ResponseHead:
        try:
            head = self._upstream.take(head_length, _ANSWER_S, _HEAD_S)
            if head:
                self._heard = True
                return parse_response(head)
        except (BadHead, OSError):
            pass
        raise UpstreamFailed(can_be_answered=not self._answered)

    def _checked(self, response: ResponseHead) -> Framing:
        try:
            return response.body(self._request.method)
        except BadHead:
            raise UpstreamFailed(can_be_answered=not self._answered) from None

    def _head_for_client(self, response: ResponseHead, kind: Body) -> bytes:
        fields = response.passed_on()
        if self._chunks_for_client(kind):
            fields.append((b"transfer-encoding", b"chunked"))
        if self._closes:
            fields.append((b"connection", b"close"))
        return _status_line(response, fields)

    def _chunks_for_client(self, kind: Body) -> bool:
        return kind in (CHUNKED, UNTIL_CLOSE) and self._request.minor == 1

    def _pass_body(self, head: bytes, kind: Body, size: int) -> None:
        if self._chunks_for_client(kind):
            self._client.sock.sendall(head)
            self._pass_chunked(kind)
            return
        if size:  # what of the body came with the head goes with it, too
            begun = self._upstream.cut(min(size, len(self._upstream.buffer)))
            head, size = head + begun, size - len(begun)
        self._client.sock.sendall(head)
        try:
            complete = _copy_body(self._upstream, (kind, size), self._client.sock.sendall, chunked=False)
        except BadHead:
            complete = False
        if not complete:
            raise UpstreamFailed(can_be_answered=False)

    def _pass_chunked(self, kind: Body) -> None:
        send = self._client.sock.sendall
        try:
            complete = _copy_body(self._upstream, (kind, 0), lambda data: send(chunk(data)), chunked=False)
        except BadHead:
            complete = False
        if not complete:
            raise UpstreamFailed(can_be_answered=False)
        send(LAST_CHUNK)


def _status_line(response: ResponseHead, fields: list[tuple[bytes, bytes]]) -> bytes:
    line = b"HTTP/1.1 %d %b" % (response.status, response.reason)
    return written(line, fields)


def _copy_body(
    source: Incoming, framing: Framing, send: Callable[[bytes], object], *, chunked: bool = True
) -> bool:
    """Pass a body on; return whether all of it came.  `chunked`: write chunks where chunks were read.

    Raises BadHead for chunks that cannot be read, and OSError.
    """
    kind, left = framing
    if kind is CHUNKED:
        return _copy_chunks(source, send, chunked=chunked)
    if kind is UNTIL_CLOSE:
        try:
            while data := source.read():
                send(data)
        except ConnectionError:
            return False  # it was cut off: only an orderly end says that it was all
        return True
    while left:
        data = source.read(min(left, READ_BYTES))
        if not data:
            return False
        left -= len(data)
        send(data)
    return True


def _copy_chunks(source: Incoming, send: Callable[[bytes], object], *, chunked: bool) -> bool:
    chunks, most = Chunks(), _FEW_BYTES
    while not chunks.ended:
        data = source.read(most)
        if not data:
            return False
        pieces = chunks.feed(data)
        if pieces:
            joined = b"".join(pieces)
            send(chunk(joined) if chunked else joined)
        most = READ_BYTES
        if len(pieces) >= _MANY_CHUNKS:
            most = _FEW_BYTES
            give_way()
    if chunked:
        send(LAST_CHUNK)
    source.buffer = chunks.rest + source.buffer
    return True
