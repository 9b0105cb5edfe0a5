"""Accepts the connections of a relay, with or without TLS, and hands upgraded ones to the rendezvous."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable
from ipaddress import ip_address

from gevent import spawn
from gevent.hub import get_hub

from execserver.listen_url import WsListen
from execserver.relay.http import HttpConnection, Service
from execserver.relay.identity import Identity
from execserver.relay.limits import Limits
from execserver.relay.lobby import Lobby
from execserver.relay.wires import PlainWire, TlsWire, Wire
from execserver.settings import Settings
from execserver.transports.tuning import tune

_log = logging.getLogger(__name__)

_READY_READ = 1
_RETRY_S = 0.1  # after accept failed for want of descriptors
_MADE_FREE = 16  # connections that end then; other parts need descriptors too


def bind(listen: WsListen, settings: Settings) -> socket.socket:
    """Return a listening, non-blocking socket; raises OSError."""
    sock = socket.socket(socket.AF_INET6 if listen.is_ipv6 else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        scope = (0, listen.scope_id) if listen.is_ipv6 else ()
        sock.bind((listen.host, listen.port, *scope))
        tune(sock, settings)
        sock.listen(settings.listen_backlog)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


Attach = Callable[[Identity, Wire, str, bytes], None]


class RelayListener:
    """Serves a listening, non-blocking socket, which it owns."""

    def __init__(
        self, sock: socket.socket, limits: Limits, lobby: Lobby, service: Service, attach: Attach
    ) -> None:
        self._sock = sock
        self._limits = limits
        self._lobby = lobby
        self._service = service
        self._attach = attach
        self.context: ssl.SSLContext | None = None  # may be replaced at any time
        loop = get_hub().loop
        self._accepting = loop.io(sock.fileno(), _READY_READ)
        self._retry = loop.timer(_RETRY_S, _RETRY_S)

    def start(self) -> None:
        """Begin to accept."""
        self._retry.stop()
        self._accepting.start(self._accept)

    def close(self) -> None:
        """Stop accepting."""
        self._accepting.stop()
        self._retry.stop()
        self._sock.close()

    def _accept(self) -> None:
        try:
            sock, address = self._sock.accept()
        except (BlockingIOError, ConnectionError):
            return  # it left before it was accepted
        except OSError as error:
            _log.warning("cannot accept connections for a moment: %s", error)
            self._accepting.stop()
            for _ in range(_MADE_FREE):
                self._lobby.make_room()
            self._retry.again(self.start)
            return
        spawn(self._serve, sock, address)

    def _serve(self, sock: socket.socket, address: tuple[str, int]) -> None:
        host = address[0]
        peer = f"[{host}]:{address[1]}" if ":" in host else f"{host}:{address[1]}"
        upgraded: tuple[Identity, bytes] | None = None
        wire: Wire | None = None
        try:
            sock.setblocking(False)
            wire = self._wire(sock)
            is_local = ip_address(host.partition("%")[0]).is_loopback
            connection = HttpConnection(wire, peer, is_local, self._limits, self._lobby)
            upgraded = connection.serve(self._service)
        except OSError as error:
            _log.info("a connection was lost: peer=%s error=%s", peer, error)
        finally:
            if upgraded is None:
                (sock if wire is None else wire.sock).close()
        if upgraded is not None and wire is not None:
            self._attach(upgraded[0], wire, peer, upgraded[1])

    def _wire(self, sock: socket.socket) -> Wire:
        return PlainWire(sock) if self.context is None else TlsWire(sock, self.context)
