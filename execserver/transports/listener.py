"""Accepts connections on the one port, and runs each to its end."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from gevent import spawn_raw
from gevent.hub import get_hub

from execserver.access.identity import Identity
from execserver.access.tokens.holder import Holder
from execserver.eventloop.acceptor import Acceptor
from execserver.handlers.context import Call
from execserver.settings import Settings
from execserver.transports.arrival import Arrival, Arrived, NotWelcome, arrival_for
from execserver.transports.connection import Connection, connection_over
from execserver.transports.door import OPEN_DOOR, Door
from execserver.transports.lapsing import LapseSweep
from execserver.transports.open_connections import OpenConnections
from execserver.transports.outbox import Outbox
from execserver.transports.silent_peers import SilentPeers
from execserver.transports.upgrade import Upgraded, upgrade, upgrade_at_once
from execserver.transports.ws_server import Shared, WebSocketTransport
from execserver.wire.close_codes import GOING_AWAY

if TYPE_CHECKING:
    from execserver.access.identity import Authenticator
    from execserver.handover.carrier import Incoming, Outgoing
    from execserver.handover.records import PackedConnection, PackedListener
    from execserver.services.sessions.host import Session
    from execserver.unix_socket import BoundFile

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
        self._run_callback = get_hub().loop.run_callback
        self._make_call = make_call
        self._door = door
        self._shared = Shared(settings)
        self._silent = SilentPeers(settings.upgrade_timeout_s, self._dropped)
        self._lapses = LapseSweep()
        self._sock = sock
        self.open: OpenConnections[WebSocketTransport] = OpenConnections(may_go=arrival is None)
        self._waiting: dict[socket.socket, None] = {}  # not upgraded yet, in the order they came

    def start(self) -> None:
        """Begin to accept."""
        self._acceptor.start()

    def close(self) -> None:
        """Stop accepting and say goodbye to every client."""
        self._acceptor.close()
        for transport, _ in self.open.pairs():
            transport.close(GOING_AWAY, "the server is shutting down")

    # On the way to the program that takes this server's place:

    def pack(self, out: Outgoing, file: BoundFile | None) -> PackedListener:
        """Return what `unpack` takes; connections that are being closed, or upgraded, are left out."""
        from execserver.handover.records import PackedListener
        from execserver.transports import handed_over

        connections = [
            handed_over.pack(transport, connection, out)
            for transport, connection in self.open.pairs()
            if transport.is_open
        ]
        silent = [out.keep(sock.fileno()) for sock in self._silent]
        place = None if file is None else (file.path, file.device, file.inode)
        return PackedListener(out.keep(self._sock.fileno()), place, connections, silent)

    def unpack(
        self,
        packed: PackedListener,
        incoming: Incoming,
        find: Callable[[str], Session | None],
        authenticator: Authenticator | None,
    ) -> Callable[[], None]:
        """Take over connections, which write from now on, but are not handled before the call of the result.

        In between, sessions go on.
        """
        from execserver.access.handed_over import unpacked
        from execserver.transports import handed_over

        made: list[tuple[Connection, PackedConnection]] = []
        for each in packed.connections:
            transport = handed_over.transport_of(each, incoming, self._settings, self._shared)
            connection = self._added(transport, unpacked(each.identity, authenticator))
            handed_over.bind(connection.call, each, incoming, find(each.session_id))
            handed_over.go_on(transport, connection, each)
            made.append((connection, each))
        silent = [socket.socket(fileno=incoming.take(fd)) for fd in packed.silent]

        def handle() -> None:
            for connection, each in made:
                if each.messages:
                    connection.receive(each.messages)
            for sock in silent:
                self._accepted(sock, sock.getpeername())

        return handle

    @property
    def connections(self) -> int:
        """The number of upgraded connections."""
        return len(self.open)

    def _make_room(self) -> None:
        self._drop_oldest(len(self._waiting) - _MADE_FREE)

    def _accepted(self, sock: socket.socket, address: Any) -> None:
        self._waiting[sock] = None
        self._drop_oldest(self._settings.waiting_upgrades)
        if self._arrival.may_wait:
            spawn_raw(self._serve, sock, address)
        else:
            # Not now: what a watcher's callback raises would stop the watcher, and nobody could connect.
            self._run_callback(self._serve_at_once, sock, address)

    def _drop_oldest(self, kept: int) -> None:
        """Drop the peers that have waited longest, until `kept` peers without an upgrade are left.

        A real client sends its request at once, and idle peers must not keep others out.
        """
        while len(self._waiting) > max(0, kept):
            sock = next(iter(self._waiting))
            del self._waiting[sock]
            try:
                sock.shutdown(socket.SHUT_RDWR)  # who waits for it sees the end of file and closes it
            except OSError:
                pass  # the peer has left already

    def _serve(self, sock: socket.socket, address: Any) -> None:
        """Wait until the connection has arrived and is upgraded."""
        arrived = self._arrived(sock, address)
        if arrived is not None:
            self._upgrade(sock, arrived, b"")

    def _serve_at_once(self, sock: socket.socket, address: Any) -> None:
        arrived = self._arrived(sock, address)
        if arrived is not None:
            self._begin(sock, arrived)

    def _begin(self, sock: socket.socket, arrived: Arrived) -> None:
        """Upgrade a connection in the event loop, if its request came in one piece; else in a greenlet."""
        done = upgrade_at_once(arrived.sock, self._settings, self._door, arrived.identity)
        if done == b"" and not self._door.may_wait:
            self._silent.wait(sock, partial(self._begin, sock, arrived))
        elif isinstance(done, bytes):
            spawn_raw(self._upgrade, sock, arrived, done)
        else:
            self._upgraded(sock, arrived, done)

    def _dropped(self, sock: socket.socket) -> None:
        self._waiting.pop(sock, None)
        sock.close()

    def _arrived(self, sock: socket.socket, address: Any) -> Arrived | None:
        try:
            sock.setblocking(False)
            return self._arrival.receive(sock, address)
        except (OSError, NotWelcome) as error:
            _lost(error)
            self._dropped(sock)
            return None

    def _upgrade(self, sock: socket.socket, arrived: Arrived, received: bytes) -> None:
        upgraded = None
        try:
            upgraded = upgrade(arrived.sock, self._settings, self._door, arrived.identity, received)
        except OSError as error:
            _lost(error)
        self._upgraded(sock, arrived, upgraded)

    def _upgraded(self, sock: socket.socket, arrived: Arrived, upgraded: Upgraded | None) -> None:
        """Begin the conversation with a peer, or close a socket that is of no use."""
        self._waiting.pop(sock, None)
        if upgraded is None:
            arrived.sock.close()
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
        transport.start(self._added(transport, identity))

    def _added(self, transport: WebSocketTransport, identity: Identity) -> Connection:
        if isinstance(identity, Holder):
            self._lapses.watch(transport, identity)
        call = self._make_call(transport.outbox)
        call.connection.identity = identity
        connection = connection_over(transport, call, partial(self._ended, transport))
        self.open.add(transport, connection)
        return connection

    def _ended(self, transport: WebSocketTransport) -> None:
        self.open.discard(transport)
        self._lapses.forget(transport)


def _lost(error: Exception) -> None:
    _log.info("a connection was lost before its upgrade: %s", error)
