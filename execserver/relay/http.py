"""HTTP/1.1 on one accepted socket, until it is upgraded or ends.  Parsing is h11's: strict and bounded.

The socket belongs to whoever accepted it.  A request must be whole within its time limit, between two the
connection may rest; a client that takes no answer is given up.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import h11
from gevent.hub import get_hub

from execserver.relay.api import Request, Response, Upgrade
from execserver.relay.identity import Identity
from execserver.relay.limits import Limits
from execserver.relay.wires import Wire
from execserver.services.deadline import at_most

_READY_READ, _READY_WRITE = 1, 2
_RECEIVE_BYTES = 16 * 1024
_MAX_HEAD_BYTES = 16 * 1024

Answer = Callable[[Request], Response | Upgrade]


class _Gone(Exception):
    """The peer left, or took too long."""


class HttpConnection:
    """Answers the requests of one socket."""

    def __init__(self, wire: Wire, peer: str, is_local: bool, limits: Limits) -> None:
        self._wire = wire
        self._peer = peer
        self._is_local = is_local
        self._limits = limits
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES)
        self._buffer = bytearray(_RECEIVE_BYTES)

    def serve(self, answer: Answer) -> tuple[Identity, bytes] | None:
        """Serve until the end; return whose socket it is now and what came behind the upgrade, or None."""
        try:
            self._in_time(self._wire.handshake)
            resting_s = self._limits.request_timeout_s
            while True:
                request = self._next_request(resting_s)
                decided = answer(request)
                if isinstance(decided, Upgrade):
                    self._send(decided.data)
                    return decided.identity, self._http.trailing_data[0]
                self._respond(decided, request)
                resting_s = self._limits.keep_alive_s
        except h11.RemoteProtocolError as error:
            error.__traceback__ = None  # a frame of h11's in it holds the error
            self._refuse(error.error_status_hint)
        except (_Gone, OSError):
            pass
        return None

    def _next_request(self, resting_s: float) -> Request:
        """Wait for a request to begin, then read all of it."""
        while self._http.their_state is h11.IDLE and not self._http.trailing_data[0]:
            self._receive(resting_s)
            break
        ends = time.monotonic() + self._limits.request_timeout_s
        head: h11.Request | None = None
        body = bytearray()
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                if self._http.they_are_waiting_for_100_continue:
                    self._send_event(h11.InformationalResponse(status_code=100, headers=[]))
                self._receive(ends - time.monotonic())
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > self._limits.body_bytes:
                    raise h11.RemoteProtocolError("the body is too large", error_status_hint=413)
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                return self._made(head, bytes(body))
            else:
                raise _Gone

    def _made(self, head: h11.Request, body: bytes) -> Request:
        headers = [(name.decode("ascii"), value.decode("latin-1")) for name, value in head.headers]
        target = head.target.decode("ascii", "replace")
        return Request(head.method.decode("ascii"), target, headers, body, self._peer, self._is_local)

    def _respond(self, response: Response, request: Request) -> None:
        length = ("content-length", str(len(response.body)))
        headers = [*response.headers, length, ("date", _date())]
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
        """Answer what is no request, if an answer can still be sent."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        headers = [("content-length", "0"), ("connection", "close"), ("date", _date())]
        try:
            self._send_event(h11.Response(status_code=status, headers=headers))
        except (_Gone, OSError, h11.LocalProtocolError):
            pass

    def _send_event(self, event: h11.Event) -> None:
        self._send(self._http.send(event) or b"")

    def _receive(self, seconds: float) -> None:
        count = self._in_time(lambda: self._wire.read(memoryview(self._buffer)), seconds)
        self._http.receive_data(bytes(self._buffer[:count]))
        if not count and self._http.their_state is h11.IDLE:
            raise _Gone

    def _send(self, data: bytes) -> None:
        ends = time.monotonic() + self._limits.request_timeout_s
        left = memoryview(data)
        while left:
            try:
                left = left[self._wire.write([left]) :]
            except BlockingIOError:
                self._wait(_READY_WRITE, ends - time.monotonic())

    def _in_time(self, step: Callable[[], int | None], seconds: float | None = None) -> int:
        """Do a step that may have to wait for input."""
        ends = time.monotonic() + (self._limits.request_timeout_s if seconds is None else seconds)
        while True:
            try:
                return step() or 0
            except BlockingIOError:
                self._wait(_READY_READ, ends - time.monotonic())

    def _wait(self, event: int, seconds: float) -> None:
        if seconds <= 0:
            raise _Gone
        ready = False
        with at_most(seconds):
            hub = get_hub()
            hub.wait(hub.loop.io(self._wire.sock.fileno(), event))
            ready = True
        if not ready:
            raise _Gone


def _date() -> str:
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
