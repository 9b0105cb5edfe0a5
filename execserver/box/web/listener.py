"""The console's HTTP: one request on each connection, from a socket of the loopback to what answers it.

Heads pass the strict rules of `wire.handshake`.  Bodies, of uploads only, are left on the socket for who
takes them.  At most 64 connections are served at a time, further ones wait in the kernel; a head has 10 s to
come.  The places of 16 WebSockets come on top.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Protocol

import gevent
from gevent import socket
from gevent.pool import Pool
from gevent.server import StreamServer

from execserver.box.web.answers import plain
from execserver.box.web.gate import Asked, Gate, Refused
from execserver.eventloop.deadline import at_most
from execserver.wire.handshake import BadRequest, Request, never_a_head, parse_head

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)

_AT_ONCE: Final = 64
WEB_SOCKETS: Final = 16
_HEAD_S: Final = 10.0
_HEAD_BYTES: Final = 16 * 1024
_PIECE: Final = 64 * 1024
_LINGER_S: Final = 2.0
_LINGER_BYTES: Final = 8 * 1024 * 1024
_IDLE_S: Final = 60.0  # a browser that neither sends nor takes for so long has gone
_END_S: Final = 1.0
_END: Final = b"\r\n\r\n"


class Arrived:
    """One request and its socket, which the listener closes."""

    def __init__(self, sock: socket.socket, request: Request, asked: Asked, rest: bytes) -> None:
        self.sock = sock
        self.request = request
        self.asked = asked
        self.rest = rest  # what has come behind the head


class Service(Protocol):
    """What answers requests."""

    def serve(self, arrived: Arrived) -> None:
        """Answer on the socket; may block.  Raises Refused, OSError."""


class Listener:
    """Owns the listening socket and the connections that are no WebSockets."""

    def __init__(self, port: int) -> None:
        """Bind.  Raises OSError."""
        self._pool = Pool(_AT_ONCE + WEB_SOCKETS)
        self._server = StreamServer(("127.0.0.1", port), self._take, spawn=self._pool)
        self._server.init_socket()
        self.port: int = self._server.socket.getsockname()[1]
        self._gate: Gate | None = None
        self._service: Service | None = None

    def start(self, gate: Gate, service: Service) -> None:
        """Begin to accept."""
        self._gate, self._service = gate, service
        self._server.start()

    def stop(self) -> None:
        """Accept no more."""
        self._server.close()

    def close(self) -> None:
        """End every connection, after a moment."""
        self._pool.join(_END_S)
        self._pool.kill()
        self._service = None

    def _take(self, sock: socket.socket, address: object) -> None:
        try:
            sock.settimeout(_IDLE_S)
            self._answer(sock)
        except OSError as error:
            _log.debug("a browser's connection was lost: %s", error)
        finally:
            sock.close()

    def _answer(self, sock: socket.socket) -> None:
        assert self._gate is not None
        assert self._service is not None
        try:
            with gevent.Timeout(_HEAD_S, Refused(408, "the request has not come")):
                head, rest = _read_head(sock)
            request = parse_head(head)
            query = head.split(b" ", 2)[1].partition(b"?")[2].decode("ascii")
            self._service.serve(Arrived(sock, request, self._gate.admit(request, query), rest))
        except BadRequest:
            _refuse(sock, 400, "this is no request")
        except Refused as refused:
            _refuse(sock, refused.status, str(refused))


def _read_head(sock: socket.socket) -> tuple[bytes, bytes]:
    received = b""
    while True:
        head, end, rest = received.partition(_END)
        if len(head) > _HEAD_BYTES:
            raise Refused(431, "the head is too large")
        if never_a_head(head):
            raise BadRequest("line end")
        if end:
            return head, rest
        data = sock.recv(_PIECE)
        if not data:
            raise ConnectionError("it ended before a request")
        received += data


def _refuse(sock: socket.socket, status: int, text: str) -> None:
    sock.sendall(plain(status, text))
    linger(sock)


def linger(sock: socket.socket) -> None:
    """Read for a moment what still comes: a close with unread bytes would destroy the answer."""
    sock.shutdown(socket.SHUT_WR)
    left = _LINGER_BYTES
    with at_most(_LINGER_S):
        while left > 0 and (data := sock.recv(_PIECE)):
            left -= len(data)


def body_of(arrived: Arrived, length: int) -> Callable[[int], bytes]:
    """Return a function that reads the next bytes of a body, at most so many; empty at its end.

    The function raises ConnectionError for a body that is cut.
    """
    left = length
    rest = arrived.rest

    def read(limit: int) -> bytes:
        nonlocal left, rest
        if not left:
            return b""
        if rest:
            data, rest = rest[: min(limit, left)], rest[min(limit, left) :]
        else:
            data = arrived.sock.recv(min(limit, left, _PIECE))
        if not data:
            raise ConnectionError("the upload was cut")
        left -= len(data)
        return data

    return read
