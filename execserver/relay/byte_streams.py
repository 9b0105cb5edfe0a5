"""The byte stream of an accepted socket, with or without TLS; nothing here waits.

Both kinds raise BlockingIOError where they would have to wait.  The socket belongs to whoever made the wire.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Sequence
from itertools import islice
from typing import Protocol

_WRITE_BUFFERS = 64  # handed to one writev; the kernel's limit is 1,024
_TLS_RECORD_BYTES = 16 * 1024

Buffers = Sequence[bytes | memoryview]


class ByteStream(Protocol):
    """The byte stream that a connection reads from and writes to."""

    @property
    def sock(self) -> socket.socket:
        """The socket, with TLS around it if there is TLS."""

    @property
    def pending(self) -> bool:
        """True if bytes can be read although the kernel holds none."""

    def handshake(self) -> None:
        """Do what must be done before the first byte; to be called again after BlockingIOError."""

    def read(self, view: memoryview) -> int:
        """Read into a buffer; return how many bytes, 0 at the end.  Raises OSError."""

    def write(self, buffers: Buffers) -> int:
        """Write from the first buffers; return how many bytes were taken.  Raises OSError.

        After BlockingIOError the next call must begin with the same bytes.
        """


class PlainByteStream:
    """A socket without TLS."""

    __slots__ = ("_fd", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._fd = sock.fileno()

    @property
    def pending(self) -> bool:
        """See `ByteStream`."""
        return False

    def handshake(self) -> None:
        """See `ByteStream`."""

    def read(self, view: memoryview) -> int:
        """See `ByteStream`."""
        return os.readv(self._fd, [view])

    def write(self, buffers: Buffers) -> int:
        """See `ByteStream`."""
        if len(buffers) == 1:
            return os.write(self._fd, buffers[0])
        return os.writev(self._fd, list(islice(buffers, _WRITE_BUFFERS)))


class TlsByteStream:
    """The server's side of TLS over a socket."""

    __slots__ = ("_retry", "sock")

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self.sock: ssl.SSLSocket = context.wrap_socket(
            sock, server_side=True, do_handshake_on_connect=False, suppress_ragged_eofs=True
        )
        self._retry = b""  # OpenSSL wants a write that had to wait repeated with the same bytes

    @property
    def pending(self) -> bool:
        """See `ByteStream`."""
        return self.sock.pending() > 0

    def handshake(self) -> None:
        """See `ByteStream`."""
        try:
            self.sock.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def read(self, view: memoryview) -> int:
        """See `ByteStream`; a TLS record holds 16 KiB at most, so several are read."""
        at = 0
        try:
            while at < len(view):
                count = self.sock.recv_into(view[at:])
                if not count:
                    break
                at += count
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not at:
                raise BlockingIOError from None
        return at

    def write(self, buffers: Buffers) -> int:
        """See `ByteStream`; small buffers share a TLS record."""
        data = self._retry or _first_bytes(buffers)
        try:
            count = self.sock.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            self._retry = data
            raise BlockingIOError from None
        self._retry = b""
        return count


def is_plain(sock: socket.socket) -> bool:
    """True for a socket of a stream without TLS."""
    return not isinstance(sock, ssl.SSLSocket)


def _first_bytes(buffers: Buffers) -> bytes:
    parts: list[bytes | memoryview] = []
    size = 0
    for buffer in buffers:
        parts.append(buffer)
        size += len(buffer)
        if size >= _TLS_RECORD_BYTES:
            break
    return b"".join(parts)[:_TLS_RECORD_BYTES]


def server_context(certificate: str, key: str) -> ssl.SSLContext:
    """Return a context with this certificate (PEM files).  Raises OSError, of which SSLError is a kind."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    context.load_cert_chain(certificate, key)
    return context
