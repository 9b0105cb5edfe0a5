"""A TCP proxy that drops the connections it carries when told to, and may refuse new ones for a while.

Owns its listening socket, the sockets of both sides, and one daemon thread per direction; `stop` ends them.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from urllib.parse import urlsplit

RESET = struct.pack("ii", 1, 0)


class CuttingProxy:
    """Carries every connection made to `url` to the server behind it."""

    def __init__(self, target_url: str) -> None:
        """Listen on a free port of the loopback."""
        parts = urlsplit(target_url)
        self._target = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        # What is behind TLS is carried as it is.
        self.url = f"{'wss' if parts.scheme == 'wss' else 'ws'}://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self.from_server = bytearray()
        """Everything the server has sent, of all connections."""
        self.answers = threading.Event()
        """While it is clear, what the server sends waits here."""
        self.answers.set()
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._refusing = False
        self._start(self._accept)

    def _start(self, run: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=run, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing:
                client.close()
                continue
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self.connections += 1
                self._pairs.append((client, server))
            self._start(self._carry, client, server, None)
            self._start(self._carry, server, client, self.from_server)

    def _carry(self, source: socket.socket, sink: socket.socket, carried: bytearray | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if carried is not None:
                    carried += data
                    self.answers.wait()
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """Reset every connection on both sides."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for one in pair:
                with contextlib.suppress(OSError):
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                    one.shutdown(socket.SHUT_RDWR)
                one.close()

    def refuse(self, refusing: bool) -> None:
        """Refuse new connections, or take them again."""
        self._refusing = refusing

    def lead_to(self, target_url: str) -> None:
        """Carry new connections to another server."""
        parts = urlsplit(target_url)
        self._target = (parts.hostname, parts.port)

    def stop(self) -> None:
        """End everything."""
        self.answers.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(5)
