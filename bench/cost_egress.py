"""What a connection through the network proxy of a process costs the server: a row for each way."""

from __future__ import annotations

import base64
import itertools
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.client import Client
from bench.cost_rows import CostRow
from bench.egress import proxy_launch
from bench.egress_process import Place, through_connect, through_socks

_UNIQUE = itertools.count()
_KEPT = b"kept"  # a path for which the server waits for further requests
# It tells where its proxies listen, and stays until its input ends.
_ARGV = ["/bin/sh", "-c", "echo $HTTP_PROXY $ALL_PROXY; exec cat"]


def connect(url: str, folder: Path, times: int) -> None:
    """Open a tunnel, exchange a byte, and leave."""
    with _proxies(url, folder) as (http, _), _server() as port:
        for _ in range(times):
            _exchange(through_connect(port, http))


def socks(url: str, folder: Path, times: int) -> None:
    """The same with SOCKS."""
    with _proxies(url, folder) as (_, proxy), _server() as port:
        for _ in range(times):
            _exchange(through_socks(port, proxy))


def get(url: str, folder: Path, times: int, path: bytes = b"") -> None:
    """Send plain requests over one connection to the proxy; the server closes its own after each."""
    with _proxies(url, folder) as (http, _), _server() as port, socket.create_connection(http) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request = b"GET http://127.0.0.1:%d/%b HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % (port, path, port)
        for _ in range(times):
            sock.sendall(request)
            data = b""
            while not data.endswith(b"\r\n\r\nk"):
                data += sock.recv(4096)


def get_kept(url: str, folder: Path, times: int) -> None:
    """The same with a server that keeps its connections."""
    get(url, folder, times, _KEPT)


def _exchange(sock: socket.socket) -> None:
    with sock:
        sock.sendall(b"x\n")
        sock.recv(1)


@contextmanager
def _proxies(url: str, folder: Path) -> Iterator[tuple[Place, Place]]:
    """Start a process, and yield where its proxies for HTTP and SOCKS listen."""
    process_id = f"egress{next(_UNIQUE)}"
    start = {"processId": process_id, "argv": _ARGV, "cwd": folder.as_uri(), "tty": False, "pipeStdin": True}
    start |= {"env": {"PATH": "/usr/bin:/bin"}, "networkProxy": proxy_launch()}
    with Client(url) as client:
        client.call("process/start", start)
        line = base64.b64decode(client.wait_for("process/output", process_id)["chunk"]).decode()
        http, proxy = (text.rpartition("//")[2].rpartition(":") for text in line.split())
        yield (http[0], int(http[2])), (proxy[0], int(proxy[2]))
        client.call("process/terminate", {"processId": process_id})
        client.wait_for("process/closed", process_id)


@contextmanager
def _server() -> Iterator[int]:
    """Answer the first bytes of each connection on a port of loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_answer, args=(listener,))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _answer(listener: socket.socket) -> None:
    while True:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        with sock:
            data = sock.recv(4096)
            if not data.startswith(b"GET"):
                sock.sendall(b"k")
                sock.recv(1)
            while data.startswith(b"GET"):
                sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nk")
                data = sock.recv(4096) if _KEPT in data else b""


EGRESS = [
    CostRow("egress_connect", "a tunnel by CONNECT, one byte each way", 60, connect),
    CostRow("egress_socks", "the same by SOCKS", 60, socks),
    CostRow("egress_get", "a plain GET through a proxy", 100, get),
    CostRow("egress_kept", "the same, the server keeps connections", 100, get_kept),
]
