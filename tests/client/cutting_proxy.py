"""A TCP proxy that breaks connections when told to."""

from __future__ import annotations

import struct
from typing import Self
from urllib.parse import urlsplit

import gevent
from gevent import socket
from gevent.pool import Pool
from gevent.server import StreamServer

_RESET = struct.pack("ii", 1, 0)  # linger for no time: closing sends a reset


class CuttingProxy:
    """Stands before a server; owns its listening socket and both ends of each connection.

    `cut` resets all connections.  With `open_for_new` False new ones are reset at once.  With `swallow` True
    what the server says is lost, as on a line that is about to break.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (str(parts.hostname), int(parts.port or 0))
        self._server = StreamServer(("127.0.0.1", 0), self._serve, spawn=Pool())
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self.open_for_new = True
        self.swallow = False
        self.accepted = 0
        self.forwarded = 0

    @property
    def url(self) -> str:
        """Where clients connect to."""
        return f"ws://127.0.0.1:{self._server.server_port}"

    def cut(self) -> None:
        """Reset every connection, and forget what was swallowed."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                _reset(end)
        self.swallow = False

    def _serve(self, client: socket.socket, address: object) -> None:
        self.accepted += 1
        if not self.open_for_new:
            _reset(client)
            return
        server = socket.create_connection(self._target)
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pairs.append((client, server))
        up = gevent.spawn(self._pump, client, server, False)
        self._pump(server, client, True)
        up.join()
        client.close()
        server.close()

    def _pump(self, source: socket.socket, sink: socket.socket, from_server: bool) -> None:
        try:
            while data := source.recv(65536):
                if from_server:
                    self.forwarded += len(data)
                if not (from_server and self.swallow):
                    sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            end.close()

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.cut()
        self._server.stop(timeout=1)


def _reset(sock: socket.socket) -> None:
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    except OSError:
        pass  # closed already
    sock.close()
