"""Accepts connections on the one port and sees each through its life."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

from gevent import spawn
from gevent.hub import get_hub

from execserver.handlers.context import Call
from execserver.settings import Settings
from execserver.transports.connection import Connection
from execserver.transports.outbox import Outbox
from execserver.transports.upgrade import upgrade
from execserver.transports.ws_server import Shared, WebSocketTransport
from execserver.wire.websocket import GOING_AWAY

_log = logging.getLogger(__name__)

_READY_READ = 1
_RETRY_S = 0.1  # after accept failed for want of descriptors
_MADE_FREE = 16  # peers that have said nothing yet and go then; starting processes needs descriptors too


class WebSocketListener:
    """Serves every connection of a listening socket, tuned before it listened, which it owns."""

    def __init__(self, sock: socket.socket, settings: Settings, make_call: Callable[[Outbox], Call]) -> None:
        self._sock = sock
        self._ipv6 = sock.family == socket.AF_INET6
        self._settings = settings
        self._make_call = make_call
        self._shared = Shared(settings)
        self._transports: set[WebSocketTransport] = set()
        self._waiting: dict[socket.socket, None] = {}  # not upgraded yet, in the order they came
        loop = get_hub().loop
        self._accepting = loop.io(sock.fileno(), _READY_READ)
        self._retry = loop.timer(_RETRY_S, _RETRY_S)  # a timer that does not repeat forgets its delay

    def start(self) -> None:
        """Begin to accept."""
        self._retry.stop()
        self._accepting.start(self._accept)

    def close(self) -> None:
        """Stop accepting and say goodbye to every client."""
        self._accepting.stop()
        self._retry.stop()
        self._sock.close()
        for transport in list(self._transports):
            transport.close(GOING_AWAY, "the server is shutting down")

    @property
    def connections(self) -> int:
        """How many upgraded connections are being served."""
        return len(self._transports)

    def _accept(self) -> None:
        """Accept one connection; the loop calls again while more are waiting."""
        try:
            sock, address = self._sock.accept()
        except (BlockingIOError, ConnectionError):
            return  # it left before it was accepted
        except OSError as error:
            _log.warning("cannot accept connections for a moment: %s", error)
            self._accepting.stop()
            self._drop_oldest(len(self._waiting) - _MADE_FREE)
            self._retry.again(self.start)
            return
        self._waiting[sock] = None
        self._drop_oldest(self._settings.waiting_upgrades)
        spawn(self._serve, sock, address)

    def _drop_oldest(self, kept: int) -> None:
        """End the longest waiting peers: who means to speak has done so, and none must keep others out."""
        while len(self._waiting) > max(0, kept):
            sock = next(iter(self._waiting))
            del self._waiting[sock]
            try:
                sock.shutdown(socket.SHUT_RDWR)  # whoever reads from it sees the end, and closes it
            except OSError:
                pass  # it left by itself

    def _serve(self, sock: socket.socket, address: tuple[str, int]) -> None:
        early = None
        try:
            sock.setblocking(False)
            early = upgrade(sock, self._settings)
        except OSError as error:
            _log.info("a connection was lost before its upgrade: %s", error)
        self._waiting.pop(sock, None)
        if early is None:
            sock.close()
            return
        peer = f"[{address[0]}]:{address[1]}" if self._ipv6 else f"{address[0]}:{address[1]}"
        self._run(WebSocketTransport(sock, peer, self._settings, self._shared, early))

    def _run(self, transport: WebSocketTransport) -> None:
        self._transports.add(transport)
        connection = Connection(transport, self._make_call(transport.outbox))
        transport.start(connection)
        try:
            connection.run()
        finally:
            self._transports.discard(transport)
