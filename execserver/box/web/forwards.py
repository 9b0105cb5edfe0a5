"""Ports of boxes that are reached by a port of this machine, as with `execserver forward`.

At most 32, each on a free port of the loopback, with 128 connections at a time for all.  Whoever can connect
to this machine's loopback reaches them, without the secret of the console.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from gevent import socket
from gevent.pool import Pool
from gevent.server import StreamServer

from execserver.box.ports.passage import join
from execserver.box.web.failing import BUSY, NOT_FOUND, UNSUPPORTED, CallFailed
from execserver.eventloop.ends import of_gevent

if TYPE_CHECKING:
    from execserver.box.web.link import Link
    from execserver.box.web.reading import Params

_MOST: Final = 32
_AT_ONCE: Final = 128
_LARGEST_PORT: Final = 65535
_MOST_LISTED: Final = 1024


class _Forward(NamedTuple):
    box: str
    host: str
    port: int
    server: StreamServer


class Forwards:
    """Owns the listeners, by URL."""

    def __init__(self) -> None:
        self._open: dict[str, _Forward] = {}
        self._pool = Pool(_AT_ONCE)

    def listed(self, link: Link) -> list[dict[str, object]]:
        """Return the ports that somebody listens on there, by number."""
        with link.using() as client:
            if client.extensions.port_forward is None:
                raise CallFailed("this server lists no ports", UNSUPPORTED, "use a newer execserver there")
            listening = client.ports.list().listening
        found = sorted(listening, key=lambda each: (each.port, each.host))[:_MOST_LISTED]
        urls = {(each.port): url for url, each in self._open.items() if each.box == link.box.name}
        return [
            {
                "port": each.port,
                "address": each.host,
                "process": each.program,
                "process_id": each.process_id,
                "user": each.user,
                "url": urls.get(each.port),
            }
            for each in found
        ]

    def open(self, link: Link, params: Params) -> dict[str, object]:
        """Lead a port of this machine to one of the box."""
        port = params.number("port", 1, _LARGEST_PORT)
        host = params.maybe_text("address", 255) or "localhost"
        for url, known in self._open.items():
            if (known.box, known.host, known.port) == (link.box.name, host, port):
                return {"url": url}
        if len(self._open) >= _MOST:
            raise CallFailed(f"{_MOST} ports are forwarded", BUSY, "close one of them")
        with link.using() as client:
            if client.extensions.port_forward is None:
                raise CallFailed("this server forwards no ports", UNSUPPORTED, "use a newer execserver there")
            client.ports.open(host, port).close()  # tells at once what the box refuses

        def serve(sock: socket.socket, address: object) -> None:
            _serve(link, host, port, sock)

        server = StreamServer(("127.0.0.1", 0), serve, spawn=self._pool)
        server.start()
        url = f"http://127.0.0.1:{server.address[1]}/"
        self._open[url] = _Forward(link.box.name, host, port, server)
        return {"url": url}

    def close(self, url: str) -> dict[str, object]:
        """Listen no longer; connections that are open go on."""
        found = self._open.pop(url, None)
        if found is None:
            raise CallFailed("nothing is forwarded there", NOT_FOUND)
        found.server.close()
        return {}

    def shut(self) -> None:
        """End everything."""
        for each in self._open.values():
            each.server.close()
        self._open.clear()
        self._pool.kill()


def _serve(link: Link, host: str, port: int, sock: socket.socket) -> None:
    with sock:
        try:
            with link.using() as client:
                stream = client.ports.open(host, port)
        except CallFailed:
            return  # the connection ends, as one to a closed port
        join(of_gevent(sock), stream)
