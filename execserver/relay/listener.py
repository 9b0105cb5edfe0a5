"""Accepts the connections of a relay, with or without TLS, and hands upgraded ones to the rendezvous."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable
from ipaddress import ip_address
from typing import TYPE_CHECKING, NamedTuple

from gevent import Greenlet, getcurrent, spawn
from gevent.event import Event

from execserver.eventloop.acceptor import Acceptor
from execserver.relay.admission import Admission
from execserver.relay.byte_streams import ByteStream, PlainByteStream, TlsByteStream
from execserver.relay.http import GivenUp, HttpConnection, Service
from execserver.relay.identity import Identity
from execserver.relay.limits import Limits

if TYPE_CHECKING:
    from execserver.handover.carrier import Incoming, Outgoing
    from execserver.handover.relay_records import PackedHttp

_log = logging.getLogger(__name__)

_MADE_FREE = 16  # connections that end then; other parts need descriptors too


class _Served(NamedTuple):
    greenlet: Greenlet[..., None]
    sock: socket.socket
    host: str
    port: int


Attach = Callable[[Identity, ByteStream, str, bytes], None]


class RelayListener:
    """Serves a listening, non-blocking socket, which it owns."""

    def __init__(
        self, sock: socket.socket, limits: Limits, admission: Admission, service: Service, attach: Attach
    ) -> None:
        self._acceptor = Acceptor(sock, self._accepted, self._make_room, _log)
        self._limits = limits
        self._admission = admission
        self._service = service
        self._attach = attach
        self.context: ssl.SSLContext | None = None  # may be replaced at any time
        self._gate = Event()
        self._gate.set()
        # Those that are not upgraded, with the greenlets that serve them.
        self._connections: dict[HttpConnection, _Served] = {}

    def start(self) -> None:
        """Begin to accept."""
        self._acceptor.start()

    def close(self) -> None:
        """Stop accepting."""
        self._acceptor.close()

    def hold(self) -> None:
        """Begin with no further request until `release`."""
        self._acceptor.pause()
        self._gate.clear()

    def release(self) -> None:
        """Go on."""
        self._acceptor.start()
        self._gate.set()

    @property
    def is_busy(self) -> bool:
        """True while a request is worked on."""
        return not all(each.is_between for each in self._connections)

    @property
    def is_leaving(self) -> bool:
        """True while a connection is here that cannot be handed over."""
        return not all(each.can_go_along for each in self._connections)

    def give_up_rest(self) -> None:
        """Answer with 503 what is worked on, and end the connections that cannot be handed over."""
        for connection, served in list(self._connections.items()):
            if not connection.can_go_along:
                served.greenlet.kill(GivenUp, block=False)

    def pack(self, out: Outgoing) -> tuple[int, list[PackedHttp]]:
        """Return the descriptor of the listening socket, and what `restore` takes."""
        packed = [
            connection.pack(out.keep(each.sock.fileno()), each.host, each.port)
            for connection, each in self._connections.items()
            if connection.can_go_along
        ]
        return out.keep(self._acceptor.fd), packed

    def restore(self, packed: list[PackedHttp], incoming: Incoming) -> None:
        """Go on with connections that another program had."""
        for each in packed:
            sock = socket.socket(fileno=incoming.take(each.fd))
            spawn(self._serve, sock, (each.host, each.port), each)

    def _accepted(self, sock: socket.socket, address: tuple[str, int]) -> None:
        spawn(self._serve, sock, address)

    def _make_room(self) -> None:
        for _ in range(_MADE_FREE):
            self._admission.make_room()

    def _serve(self, sock: socket.socket, address: tuple[str, int], packed: PackedHttp | None = None) -> None:
        host = address[0]
        peer = f"[{host}]:{address[1]}" if ":" in host else f"{host}:{address[1]}"
        upgraded: tuple[Identity, bytes] | None = None
        stream: ByteStream | None = None
        try:
            sock.setblocking(False)
            stream = self._stream(sock)
            greenlet = getcurrent()
            assert isinstance(greenlet, Greenlet)
            upgraded = self._answered(stream, peer, _Served(greenlet, sock, host, address[1]), packed)
        except OSError as error:
            _log.info("a connection was lost: peer=%s error=%s", peer, error)
        except GivenUp:
            pass  # while it was refused
        finally:
            if upgraded is None:
                (sock if stream is None else stream.sock).close()
        if upgraded is not None and stream is not None:
            self._attach(upgraded[0], stream, peer, upgraded[1])

    def _answered(
        self, stream: ByteStream, peer: str, served: _Served, packed: PackedHttp | None
    ) -> tuple[Identity, bytes] | None:
        is_local = ip_address(served.host.partition("%")[0]).is_loopback
        connection = HttpConnection(stream, peer, is_local, self._limits, self._admission, self._gate)
        if packed is not None:
            connection.restore(packed)
        self._connections[connection] = served
        try:
            return connection.serve(self._service)
        finally:
            del self._connections[connection]

    def _stream(self, sock: socket.socket) -> ByteStream:
        return PlainByteStream(sock) if self.context is None else TlsByteStream(sock, self.context)
