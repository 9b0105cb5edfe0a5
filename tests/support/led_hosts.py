"""Public hosts on loopback: a proxy that leads every tunnel to one TLS server with a certificate for them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path

from tests.remote.standin import Asked, StandIn, Told
from tests.support.certificates import make_authority


class LedHosts:
    """The server behind all `names`, and the proxy before it; `environ` leads a program here.

    `tunnels` holds the targets that were asked for.
    """

    def __init__(self, folder: Path, names: tuple[str, ...], answer: Callable[[Asked], Told]) -> None:
        authority = make_authority()
        (folder / "ca.pem").write_bytes(authority.pem)
        (folder / "hosts.pem").write_bytes(authority.issue(*names))
        self.server = StandIn(answer, str(folder / "hosts.pem"))
        self.tunnels: list[str] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        proxy = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.environ = {
            "HTTPS_PROXY": proxy,
            "NO_PROXY": "127.0.0.1",
            "CODEX_CA_CERTIFICATE": str(folder / "ca.pem"),
        }

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._tunnel, args=(sock,), daemon=True).start()

    def _tunnel(self, sock: socket.socket) -> None:
        with sock, socket.create_connection(("127.0.0.1", self.server.server_address[1])) as target:
            head = sock.recv(65536).decode()
            self.tunnels.append(head.split()[1])
            sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            back = threading.Thread(target=copy, args=(target, sock), daemon=True)
            back.start()
            copy(sock, target)
            back.join()

    def close(self) -> None:
        """End everything."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()
        self.server.stop()


def copy(source: socket.socket, target: socket.socket) -> None:
    """Pass bytes on until the source ends."""
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass
    try:
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass
