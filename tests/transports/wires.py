"""The peer's end of a wire in tests, and framings that can be seen."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


class Marks:
    """A framing made of characters: `<>` around a message, `(`, `|` and `)` around the pieces of one.

    `[` and `]` are around one in binary form.
    """

    carries_binary = True

    def short(self, message: bytes) -> bytes:
        return b"<" + message + b">"

    def whole(self, length: int, *, binary: bool = False) -> tuple[bytes, bytes]:
        return (b"[", b"]") if binary else (b"<", b">")

    def piece(self, length: int, *, first: bool, final: bool) -> tuple[bytes, bytes]:
        return b"(" if first else b"|", b")" if final else b""


@contextmanager
def tcp_connection(receive_bytes: int = 0) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Connect two non-blocking sockets, ours and the peer's, which may have a small receive buffer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.socket()
        if receive_bytes:
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        theirs.connect(server.getsockname())
        ours, _ = server.accept()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        yield ours, theirs


def fill(sock: socket.socket) -> int:
    """Send until the kernel takes no more; return how much that was."""
    sent = 0
    while True:
        try:
            sent += sock.send(b"x" * 65536)
        except BlockingIOError:
            return sent


def take(sock: socket.socket, limit: int = 1 << 30) -> bytes:
    """Read what has arrived at a non-blocking socket, at most about `limit` bytes."""
    data = bytearray()
    while len(data) < limit:
        try:
            more = sock.recv(min(65536, limit - len(data)))
        except BlockingIOError:
            break
        if not more:
            break
        data += more
    return bytes(data)


def take_packets(sock: socket.socket) -> list[bytes]:
    """Read every packet that has arrived at a non-blocking packet socket: one for each write."""
    packets = []
    while True:
        try:
            packets.append(sock.recv(1 << 20))
        except BlockingIOError:
            return packets
