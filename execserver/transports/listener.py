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


class WebSocketListener:
    """Serves every connection of a listening socket, tuned before it listened, which it owns."""

    def __init__(self, sock: socket.socket, settings: Settings, make_call: Callable[[Outbox], Call]) -> None:
        self._sock = sock
        self._ipv6 = sock.family == socket.AF_INET6
        self._settings = settings
        self._make_call = make_call
        self._shared = Shared(settings)
        self._transports: set[WebSocketTransport] = set()
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
            self._retry.again(self.start)
            return
        spawn(self._serve, sock, address)

    def _serve(self, sock: socket.socket, address: tuple[str, int]) -> None:
        early = None
        try:
            sock.setblocking(False)
            early = upgrade(sock, self._settings)
        except OSError as error:
            _log.info("a connection was lost before its upgrade: %s", error)
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
