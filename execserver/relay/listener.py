"""Accepts the connections of a relay, with or without TLS, and hands upgraded ones to the rendezvous."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable
from ipaddress import ip_address

from gevent import spawn

from execserver.eventloop.acceptor import Acceptor
from execserver.relay.admission import Admission
from execserver.relay.byte_streams import ByteStream, PlainByteStream, TlsByteStream
from execserver.relay.http import HttpConnection, Service
from execserver.relay.identity import Identity
from execserver.relay.limits import Limits

_log = logging.getLogger(__name__)

_MADE_FREE = 16  # connections that end then; other parts need descriptors too

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

    def start(self) -> None:
        """Begin to accept."""
        self._acceptor.start()

    def close(self) -> None:
        """Stop accepting."""
        self._acceptor.close()

    def _accepted(self, sock: socket.socket, address: tuple[str, int]) -> None:
        spawn(self._serve, sock, address)

    def _make_room(self) -> None:
        for _ in range(_MADE_FREE):
            self._admission.make_room()

    def _serve(self, sock: socket.socket, address: tuple[str, int]) -> None:
        host = address[0]
        peer = f"[{host}]:{address[1]}" if ":" in host else f"{host}:{address[1]}"
        upgraded: tuple[Identity, bytes] | None = None
        stream: ByteStream | None = None
        try:
            sock.setblocking(False)
            stream = self._stream(sock)
            is_local = ip_address(host.partition("%")[0]).is_loopback
            connection = HttpConnection(stream, peer, is_local, self._limits, self._admission)
            upgraded = connection.serve(self._service)
        except OSError as error:
            _log.info("a connection was lost: peer=%s error=%s", peer, error)
        finally:
            if upgraded is None:
                (sock if stream is None else stream.sock).close()
        if upgraded is not None and stream is not None:
            self._attach(upgraded[0], stream, peer, upgraded[1])

    def _stream(self, sock: socket.socket) -> ByteStream:
        return PlainByteStream(sock) if self.context is None else TlsByteStream(sock, self.context)
