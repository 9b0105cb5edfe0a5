"""HTTP/1.1 on one accepted socket, until it is upgraded or ends.

A head must first pass strict rules of our own, which refuse what two parsers could read differently; then h11
parses it and reads the body.  The socket belongs to whoever accepted it.  Without a token a request must be
whole within `unauthenticated_s`; with one it gets longer, and the connection may be idle between two
requests.  A client that does not take its answer is disconnected.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

import h11
from gevent import sleep
from gevent.event import Event
from gevent.hub import get_hub

from execserver.eventloop.deadline import at_most
from execserver.relay.admission import Admission
from execserver.relay.api import Request, Response, Shown, Upgrade
from execserver.relay.byte_streams import ByteStream, is_plain
from execserver.relay.identity import Identity
from execserver.relay.limits import Limits
from execserver.wire.handshake import BadRequest, never_a_head, parse_head

if TYPE_CHECKING:
    from execserver.handover.relay_records import PackedHttp

_READY_READ, _READY_WRITE = 1, 2
_RECEIVE_BYTES = 16 * 1024
_MAX_HEAD_BYTES = 16 * 1024
_END_OF_HEAD = b"\r\n\r\n"
_CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,8}")
_FRAMING = 4  # a chunked body may be so many times as long on the wire as its content
_LINGER_S = 1.0  # for what a refused peer still sends
_LINGER_BYTES = 64 * 1024

# One buffer is enough for all, since what was read is copied before another greenlet runs.
_BUFFER = memoryview(bytearray(_RECEIVE_BYTES))

_OPEN = Event()
_OPEN.set()

_TURNED_AWAY = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
)


class Service(Protocol):
    """What answers requests."""

    def recognize(self, request: Request) -> Shown:
        """Return what a request shows, before its body is read; may block this greenlet."""

    def answer(self, request: Request, shown: Shown) -> Response | Upgrade:
        """Answer it; may block this greenlet."""


class GivenUp(Exception):
    """Thrown into the greenlet of a connection that cannot be handed over to another program."""


class _Gone(Exception):
    """The peer left, or took too long."""


class HttpConnection:
    """Answers the requests of one socket."""

    def __init__(
        self,
        stream: ByteStream,
        peer: str,
        is_local: bool,
        limits: Limits,
        admission: Admission,
        gate: Event = _OPEN,
    ) -> None:
        """No request is begun while the gate is not set."""
        self._stream = stream
        self._peer = peer
        self._is_local = is_local
        self._limits = limits
        self._admission = admission
        self._gate = gate
        self.is_between = False  # two requests, also where a part of the next one is here
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES)
        self._ends = time.monotonic() + limits.unauthenticated_s  # the time limit of the present wait
        self._fresh = False  # TLS is made, and no answer was given yet
        self._unwanted = False
        self._waited = False  # for the peer, since it was recognized

    @property
    def can_go_along(self) -> bool:
        """True while `pack` says all that there is to say."""
        return self.is_between and not self._unwanted and is_plain(self._stream.sock)

    def pack(self, fd: int, host: str, port: int) -> PackedHttp:
        """Return what `restore` takes; it `can_go_along`."""
        from execserver.handover.relay_records import PackedHttp  # late, as all of an upgrade

        token_id = self._admission.token_of(self)
        return PackedHttp(fd, host, port, self._http.trailing_data[0], self._ends, token_id)

    def restore(self, packed: PackedHttp) -> None:
        """Go on with what was packed; `serve` follows."""
        if packed.data:  # nothing at all would be the end
            self._http.receive_data(packed.data)
        self._ends = packed.ends
        self._admission.enter(self)
        if packed.token_id is not None and self._admission.recognize(self, packed.token_id):
            self._admission.rest(self)

    def serve(self, service: Service) -> tuple[Identity, bytes] | None:
        """Serve until the end.

        Returns None, or after an upgrade the identity of the peer and the bytes that came after its request.
        """
        if not self._admission.knows(self):
            self._admission.enter(self)
        try:
            self._in_time(_READY_READ, self._stream.handshake)
            self._fresh = True
            while True:
                request, shown = self._next_request(service)
                decided = service.answer(request, shown)
                self._ends = time.monotonic() + self._limits.request_timeout_s
                if isinstance(decided, Upgrade):
                    self._send(decided.data)
                    return decided.identity, self._http.trailing_data[0]
                self._respond(decided, request)
                self._admission.rest(self)
                limits = self._limits
                self._ends = time.monotonic() + (
                    limits.keep_alive_s if shown.token_id is not None else limits.unauthenticated_s
                )
                sleep(0)  # a peer that pipelines requests must not keep others from being served
        except h11.RemoteProtocolError as error:
            error.__traceback__ = None  # one of its frames holds the error: only a collection would free it
            self._refuse(error.error_status_hint)
        except GivenUp:
            if not self.is_between:
                self._refuse(503)
        except (_Gone, OSError):
            pass
        finally:
            self.is_between = False
            self._admission.leave(self)
        return None

    def turn_away(self) -> None:
        """See `admission.Guest`; called from another greenlet or the event loop."""
        self._unwanted = True
        try:
            # At any other time it could stand in the middle of an answer.
            if self._fresh and self._http.our_state is h11.IDLE:
                self._stream.write([_TURNED_AWAY])
            # Of the socket itself: the TLS around it may be in the middle of its handshake.
            socket.socket.shutdown(self._stream.sock, socket.SHUT_RDWR)
        except OSError:
            pass  # it left by itself

    def _next_request(self, service: Service) -> tuple[Request, Shown]:
        """Read a request; return it and what it shows."""
        self.is_between = True
        self._read_head()
        self._gate.wait()
        self.is_between = False
        event = self._http.next_event()
        if not isinstance(event, h11.Request):
            raise _Gone
        self._fresh = False
        request = self._made(event)
        shown = service.recognize(request)
        if not self._admission.recognize(self, shown.token_id):
            raise h11.RemoteProtocolError("no place is left", error_status_hint=503)
        if shown.token_id is not None:
            self._ends = time.monotonic() + self._limits.request_timeout_s
        self._waited = False
        body = self._read_body(bool(request.values("transfer-encoding")))
        # A body may be sent so slowly that the token is revoked meanwhile: then it is asked for once more.
        return request._replace(body=body), shown._replace(token=None) if self._waited else shown

    def _read_head(self) -> None:
        """Wait until a whole head has arrived, and check it against our own rules."""
        while True:
            head, end, _ = self._http.trailing_data[0].partition(_END_OF_HEAD)
            if len(head) > _MAX_HEAD_BYTES:
                raise h11.RemoteProtocolError("the head is too large", error_status_hint=431)
            try:
                if never_a_head(head):
                    raise BadRequest("line end")
                if end:
                    parse_head(head)
                    return
            except BadRequest as error:
                raise h11.RemoteProtocolError(str(error)) from None
            resting = not head
            self._receive()
            if resting:  # a request has begun, and has no longer the time of an idle connection
                self._ends = min(self._ends, time.monotonic() + self._limits.request_timeout_s)

    def _read_body(self, in_chunks: bool) -> bytes:
        body = bytearray()
        raw = bytearray(self._http.trailing_data[0])
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                if self._http.they_are_waiting_for_100_continue:
                    self._send_event(h11.InformationalResponse(status_code=100, headers=[]))
                raw += self._receive()
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                used = raw[: len(raw) - len(self._http.trailing_data[0])]
                if in_chunks and not _is_plainly_chunked(bytes(used)):
                    raise h11.RemoteProtocolError("extensions or trailers")
                return bytes(body)
            else:
                raise _Gone
            # Chunks of one byte cost six on the wire: their framing is bounded, too.
            limit = self._limits.body_bytes
            if len(body) > limit or len(raw) > _FRAMING * limit + _RECEIVE_BYTES:
                raise h11.RemoteProtocolError("the body is too large", error_status_hint=413)

    def _made(self, head: h11.Request) -> Request:
        headers = [(name.decode("ascii"), value.decode("latin-1")) for name, value in head.headers]
        target = head.target.decode("ascii", "replace")
        return Request(head.method.decode("ascii"), target, headers, b"", self._peer, self._is_local)

    def _respond(self, response: Response, request: Request) -> None:
        length = ("content-length", str(len(response.body)))
        headers = [*response.headers, length, ("date", _date())]
        # A body that was not read to its end would be taken for the next request.
        if self._http.their_state is not h11.DONE:
            headers.append(("connection", "close"))
        data = self._http.send(h11.Response(status_code=response.status, headers=headers)) or b""
        if request.method != "HEAD":
            data += self._http.send(h11.Data(data=response.body)) or b""
        data += self._http.send(h11.EndOfMessage()) or b""
        self._send(data)
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            raise _Gone
        self._http.start_next_cycle()

    def _refuse(self, status: int) -> None:
        """Answer a request that is invalid or cannot be served, if an answer can still be sent."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        headers = [("content-length", "0"), ("connection", "close"), ("date", _date())]
        if status == 503:
            headers.append(("retry-after", "1"))
        try:
            self._send_event(h11.Response(status_code=status, headers=headers))
            self._linger()
        except (_Gone, OSError, h11.LocalProtocolError):
            pass

    def _linger(self) -> None:
        """Read for a moment what the peer still sends, its body say.

        Bytes that come after the close would reset the connection, and a client whose sending fails does not
        look for the answer.  The connection keeps its place meanwhile.
        """
        socket.socket.shutdown(self._stream.sock, socket.SHUT_WR)
        self._ends = min(self._ends, time.monotonic() + _LINGER_S)
        left = _LINGER_BYTES
        while left > 0:
            count = self._in_time(_READY_READ, lambda: self._stream.read(_BUFFER))
            if not count:
                return
            left -= count

    def _send_event(self, event: h11.Event) -> None:
        self._send(self._http.send(event) or b"")

    def _receive(self) -> bytes:
        self._waited = True
        count = self._in_time(_READY_READ, lambda: self._stream.read(_BUFFER))
        data = bytes(_BUFFER[:count])
        self._http.receive_data(data)
        if self._unwanted or (not data and self._http.their_state is h11.IDLE):
            raise _Gone
        return data

    def _send(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[self._in_time(_READY_WRITE, partial(self._stream.write, [left])) :]

    def _in_time(self, event: int, step: Callable[[], int | None]) -> int:
        """Do a step, again and again while it would block; raises `_Gone` at the time limit."""
        while True:
            try:
                return step() or 0
            except BlockingIOError:
                self._wait(event, self._ends - time.monotonic())

    def _wait(self, event: int, seconds: float) -> None:
        if seconds <= 0:
            raise _Gone
        ready = False
        with at_most(seconds):
            hub = get_hub()
            hub.wait(hub.loop.io(self._stream.sock.fileno(), event))
            ready = True
        if not ready:
            raise _Gone


def _is_plainly_chunked(raw: bytes) -> bool:
    """True if a chunked body has no extensions and no trailers, and every line ends with CR and LF.

    h11 accepts and ignores these; another parser of the same bytes could find a second request in them.
    """
    at, length = 0, 1
    while length:
        size, end, _ = raw[at : at + 10].partition(b"\r\n")
        if not end or not _CHUNK_SIZE.fullmatch(size):
            return False
        length = int(size, 16)
        at += len(size) + 2 + length + 2
        if raw[at - 2 : at] != b"\r\n":
            return False
    return at == len(raw)


def _date() -> str:
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
