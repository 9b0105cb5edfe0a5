"""A TCP connection on which a test writes HTTP by hand and reads the answers apart.

Owns its socket. Every wait has a deadline.
"""

from __future__ import annotations

import socket
import time
from typing import NamedTuple
from urllib.parse import urlsplit

WAIT = 20.0


class Response(NamedTuple):
    """One answer: header names in lower case."""

    version: str
    status: int
    headers: dict[str, str]
    body: bytes


def as_bytes(request: str) -> bytes:
    """Return a request head, given as lines without their ends, as it goes over the wire."""
    return "".join(f"{line.strip()}\r\n" for line in request.strip().splitlines()).encode("latin-1") + b"\r\n"


class RawHttp:
    """One connection to the port of a server's `ws://` URL."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.socket = socket.create_connection((parts.hostname or "", parts.port or 80), WAIT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""

    def __enter__(self) -> RawHttp:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Write bytes as they are."""
        self.socket.sendall(data)

    def ask(self, request: str) -> Response:
        """Send a request head, given as lines without their ends, and return its answer."""
        self.send(as_bytes(request))
        return self.response(head_only=request.lstrip().startswith("HEAD "))

    def response(self, *, head_only: bool = False) -> Response:
        """Read one answer; the body is as long as it says."""
        while b"\r\n\r\n" not in self._buffer:
            if not self._fill():
                raise AssertionError(f"the connection ended within an answer: {self._buffer!r}")
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        status_line, *fields = head.decode("latin-1").split("\r\n")
        version, status = status_line.split(" ")[:2]
        headers = {
            name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)
        }
        size = 0 if head_only else int(headers.get("content-length", 0))
        while len(self._buffer) < size:
            if not self._fill():
                raise AssertionError("the connection ended within a body")
        body, self._buffer = self._buffer[:size], self._buffer[size:]
        return Response(version, int(status), headers, body)

    def wait_for_end(self, timeout: float = WAIT) -> bytes:
        """Read until the server ends the connection; return what came before that."""
        deadline = time.monotonic() + timeout
        while self._fill(max(0.001, deadline - time.monotonic())):
            pass
        return self._buffer

    def _fill(self, timeout: float = WAIT) -> bool:
        self.socket.settimeout(timeout)
        try:
            data = self.socket.recv(65_536)
        except ConnectionResetError:
            return False
        self._buffer += data
        return bool(data)
