"""Accepts connections on the one port, and runs each to its end."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

from gevent import spawn_raw

from execserver.access.identity import Identity
from execserver.access.tokens.holder import Holder
from execserver.eventloop.acceptor import Acceptor
from execserver.handlers.context import Call
from execserver.settings import Settings
from execserver.transports.arrival import Arrival, NotWelcome, arrival_for
from execserver.transports.connection import connection_over
from execserver.transports.door import OPEN_DOOR, Door
from execserver.transports.lapsing import LapseSweep
from execserver.transports.outbox import Outbox
from execserver.transports.upgrade import upgrade
from execserver.transports.ws_server import Shared, WebSocketTransport
from execserver.wire.websocket import GOING_AWAY

_log = logging.getLogger(__name__)

_MADE_FREE = 16  # peers that have said nothing yet and go then; starting processes needs descriptors too


class WebSocketListener:
    """Serves every connection of a listening socket and owns that socket.

    Its options were set before it listened: accepted connections inherit them.
    """

    def __init__(
        self,
        sock: socket.socket,
        settings: Settings,
        make_call: Callable[[Outbox], Call],
        door: Door = OPEN_DOOR,
        arrival: Arrival | None = None,
    ) -> None:
        """`arrival` None: as fits a socket without TLS."""
        self._acceptor = Acceptor(sock, self._accepted, self._make_room, _log)
        self._arrival = arrival_for(sock) if arrival is None else arrival
        self._settings = settings
        self._make_call = make_call
        self._door = door
        self._shared = Shared(settings)
        self._lapses = LapseSweep()
        self._transports: set[WebSocketTransport] = set()
        self._waiting: dict[socket.socket, None] = {}  # not upgraded yet, in the order they came

    def start(self) -> None:
        """Begin to accept."""
        self._acceptor.start()

    def close(self) -> None:
        """Stop accepting and say goodbye to every client."""
        self._acceptor.close()
        for transport in list(self._transports):
            transport.close(GOING_AWAY, "the server is shutting down")

    @property
    def connections(self) -> int:
        """The number of upgraded connections."""
        return len(self._transports)

    def _make_room(self) -> None:
        self._drop_oldest(len(self._waiting) - _MADE_FREE)

    def _accepted(self, sock: socket.socket, address: Any) -> None:
        self._waiting[sock] = None
        self._drop_oldest(self._settings.waiting_upgrades)
        spawn_raw(self._serve, sock, address)

    def _drop_oldest(self, kept: int) -> None:
        """Drop the peers that have waited longest, until `kept` peers without an upgrade are left.

        A real client sends its request at once, and idle peers must not keep others out.
        """
        while len(self._waiting) > max(0, kept):
            sock = next(iter(self._waiting))
            del self._waiting[sock]
            try:
                sock.shutdown(socket.SHUT_RDWR)  # its greenlet sees the end of file and closes it
            except OSError:
                pass  # the peer has left already

    def _serve(self, sock: socket.socket, address: Any) -> None:
        arrived = upgraded = None
        try:
            sock.setblocking(False)
            arrived = self._arrival.receive(sock, address)
            upgraded = upgrade(arrived.sock, self._settings, self._door, arrived.identity)
        except (OSError, NotWelcome) as error:
            _log.info("a connection was lost before its upgrade: %s", error)
        self._waiting.pop(sock, None)
        if arrived is None or upgraded is None:
            (sock if arrived is None else arrived.sock).close()
            return
        transport = WebSocketTransport(
            arrived.sock,
            arrived.peer,
            self._settings,
            self._shared,
            upgraded.early,
            arrived.is_tcp,
        )
        self._run(transport, upgraded.identity)

    def _run(self, transport: WebSocketTransport, identity: Identity) -> None:
        self._transports.add(transport)
        if isinstance(identity, Holder):
            self._lapses.watch(transport, identity)
        call = self._make_call(transport.outbox)
        call.connection.identity = identity
        transport.start(connection_over(transport, call, partial(self._ended, transport)))

    def _ended(self, transport: WebSocketTransport) -> None:
        self._transports.discard(transport)
        self._lapses.forget(transport)
