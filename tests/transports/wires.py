"""The peer's end of a wire in tests, and framings that can be seen."""

from __future__ import annotations

import socket


class Marks:
    """A framing made of characters: `<>` around a message, `(`, `|` and `)` around the pieces of one."""

    def whole(self, length: int) -> tuple[bytes, bytes]:
        return b"<", b">"

    def piece(self, length: int, *, first: bool, final: bool) -> tuple[bytes, bytes]:
        return b"(" if first else b"|", b")" if final else b""


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
