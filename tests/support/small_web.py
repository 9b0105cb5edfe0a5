"""A web server on loopback for programs behind a proxy: it answers a request with its first line."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Web:
    """One request a connection, whatever it asks for; `port` is where."""

    def __init__(self) -> None:
        self._sock = socket.create_server(("127.0.0.1", 0))
        self.port = self._sock.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._sock.accept()
            except OSError:
                return
            with connection:
                body = connection.recv(65536).split(b"\r\n")[0]
                head = b"HTTP/1.1 200 Here\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
                connection.sendall(head % len(body) + body)

    def close(self) -> None:
        self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        self._thread.join()


@contextmanager
def small_web() -> Iterator[Web]:
    """Serve as long as the block lasts."""
    web = Web()
    try:
        yield web
    finally:
        web.close()
