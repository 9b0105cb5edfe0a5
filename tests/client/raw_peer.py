"""The server's end of a WebSocket, byte by byte: for what no well-behaved server sends."""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gevent import socket
from gevent.pool import Pool
from gevent.server import StreamServer


class Raw:
    """The server's end of one connection, byte by byte."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._data = bytearray()

    def head(self) -> bytes:
        """Return the head of the upgrade request."""
        while b"\r\n\r\n" not in self._data:
            self._more()
        head, _, self._data = self._data.partition(b"\r\n\r\n")
        return bytes(head)

    def accept(self, extra: bytes = b"") -> bytes:
        """Answer the upgrade, with some bytes right behind it; return the request's head."""
        head = self.head()
        key = next(
            line[19:] for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key: ")
        )
        digest = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        self.send(
            b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
            b"sec-websocket-accept: " + digest + b"\r\n\r\n" + extra
        )
        return head

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def frame(self) -> tuple[int, bytes]:
        """Return first byte and unmasked payload of the next frame."""
        first, second = self._take(2)
        assert second & 0x80, "a client's frames are masked"
        length = second & 0x7F
        if length >= 126:
            length = int.from_bytes(self._take(2 if length == 126 else 8), "big")
        mask = self._take(4)
        payload = bytearray(self._take(length))
        for index in range(4):
            payload[index::4] = payload[index::4].translate(bytes(byte ^ mask[index] for byte in range(256)))
        return first, bytes(payload)

    def break_off(self) -> None:
        """End the connection so that the client sees an error."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()

    def wait_for_end(self) -> None:
        """Read until the client has closed."""
        while True:
            try:
                if not self._sock.recv(65536):
                    return
            except OSError:
                return

    def _take(self, count: int) -> bytes:
        while len(self._data) < count:
            self._more()
        taken = bytes(self._data[:count])
        del self._data[:count]
        return taken

    def _more(self) -> None:
        piece = self._sock.recv(1 << 18)
        assert piece, "the client ended the connection"
        self._data += piece


@contextmanager
def raw(play: Callable[[Raw], None]) -> Iterator[str]:
    """Serve connections with `play`, which sees the bytes; yield the URL.  Errors in `play` fail the test."""
    errors: list[BaseException] = []

    def handle(sock: socket.socket, address: object) -> None:
        try:
            play(Raw(sock))
        except (AssertionError, OSError) as error:
            errors.append(error)
        finally:
            sock.close()

    server = StreamServer(("127.0.0.1", 0), handle, spawn=Pool())
    server.start()
    try:
        yield f"ws://127.0.0.1:{server.server_port}"
    finally:
        server.stop(timeout=1)
    assert errors == []


def text(payload: bytes, first: int = 0x81) -> bytes:
    """Return an unmasked frame."""
    if len(payload) < 126:
        return bytes((first, len(payload))) + payload
    return bytes((first, 127)) + struct.pack("!Q", len(payload)) + payload
