"""`GET /metrics` on a loopback address of its own, so that there is one in every mode of the server.

One request for each connection.  Who asks must be this machine, by one of its own names and through no proxy:
a web page can make its name resolve here.  At most `MAX_READERS` are served at a time, and a further one is
closed; each has `_LIMIT_S` for all.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Any

from gevent import spawn
from gevent.hub import get_hub

from execserver.eventloop.acceptor import Acceptor
from execserver.eventloop.deadline import at_most
from execserver.exposition import CONTENT_TYPE
from execserver.wire.handshake import BadRequest, Request, never_a_head, parse_head
from execserver.wire.host_names import names_loopback

_log = logging.getLogger(__name__)

MAX_READERS = 16
_LIMIT_S = 5.0
_MAX_HEAD_BYTES = 8192
_END_OF_HEAD = b"\r\n\r\n"
_READY_READ, _READY_WRITE = 1, 2
# A request through a proxy comes from elsewhere, even if the proxy runs on this machine.
_FORWARDED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
_REASONS = {200: "OK", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed"}
_ELSEWHERE = b"metrics are told to this machine only, asked by `localhost` or a loopback address\n"


class MetricsEndpoint:
    """Serves a listening, non-blocking socket on loopback, which it owns."""

    def __init__(self, sock: socket.socket, page: Callable[[], bytes]) -> None:
        self._acceptor = Acceptor(sock, self._accepted, lambda: None, _log)
        self._page = page
        self._readers = 0

    def start(self) -> None:
        """Begin to accept."""
        self._acceptor.start()

    def close(self) -> None:
        """Stop accepting."""
        self._acceptor.close()

    def _accepted(self, sock: socket.socket, address: Any) -> None:
        if self._readers >= MAX_READERS:
            sock.close()
            return
        self._readers += 1
        spawn(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        try:
            sock.setblocking(False)
            with at_most(_LIMIT_S):
                head = _head_from(sock)
                if head is not None:
                    _send(sock, self._answer(head))
        except OSError as error:
            _log.debug("a reader of metrics left: %s", error)
        finally:
            self._readers -= 1
            sock.close()

    def _answer(self, head: bytes) -> bytes:
        try:
            request = parse_head(head)
        except BadRequest:
            return _response(400)
        if request.values("origin") or not _is_of_this_machine(request):
            return _response(403, _ELSEWHERE)
        if request.path != "/metrics":
            return _response(404, b"there is /metrics here, and nothing else\n")
        if request.method not in ("GET", "HEAD"):
            return _response(405, headers="allow: GET,HEAD\r\n")
        answer = _response(200, self._page(), f"content-type: {CONTENT_TYPE}\r\n")
        return answer if request.method == "GET" else answer.partition(_END_OF_HEAD)[0] + _END_OF_HEAD


def _is_of_this_machine(request: Request) -> bool:
    if any(request.values(name) for name in _FORWARDED):
        return False
    return all(map(names_loopback, request.values("host")))


def _head_from(sock: socket.socket) -> bytes | None:
    """Return a request head; None if the peer leaves before, or sends something else."""
    received = b""
    while _END_OF_HEAD not in received:
        if len(received) > _MAX_HEAD_BYTES or never_a_head(received):
            return None
        try:
            data = sock.recv(_MAX_HEAD_BYTES)
        except BlockingIOError:
            get_hub().wait(get_hub().loop.io(sock.fileno(), _READY_READ))
            continue
        if not data:
            return None
        received += data
    return received.partition(_END_OF_HEAD)[0]


def _send(sock: socket.socket, data: bytes) -> None:
    left = memoryview(data)
    while left:
        try:
            left = left[sock.send(left) :]
        except BlockingIOError:
            get_hub().wait(get_hub().loop.io(sock.fileno(), _READY_WRITE))


def _response(status: int, body: bytes = b"", headers: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\n{headers}content-length: {len(body)}\r\nconnection: close"
    )
    return head.encode() + _END_OF_HEAD + body
