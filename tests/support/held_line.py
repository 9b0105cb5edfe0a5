"""A TCP proxy that holds what a client sends until it is told to pass it on.

Owns its listening socket and one daemon thread per direction; `stop` ends them.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from urllib.parse import urlsplit

_WAIT_S = 30.0


class HeldLine:
    """Carries the connections made to `url`; from `hold` to `release` nothing of the client arrives."""

    def __init__(self, target_url: str) -> None:
        """Listen on a free port of the loopback."""
        parts = urlsplit(target_url)
        self._target = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"ws://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open = threading.Event()
        self._open.set()
        self._socks: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._run(self._accept)

    def hold(self) -> None:
        """Keep what comes from now on."""
        self._open.clear()

    def release(self) -> None:
        """Pass on what was kept, and what comes."""
        self._open.set()

    def stop(self) -> None:
        """End everything."""
        self.release()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for each in (self._listener, *self._socks):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(5)

    def _run(self, work: object, *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                for each in (client, server):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._socks += [client, server]
                self._run(self._carry, client, server, self._open)
                self._run(self._carry, server, client, None)

    @staticmethod
    def _carry(source: socket.socket, sink: socket.socket, opened: threading.Event | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if opened is not None:
                    opened.wait(_WAIT_S)
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
