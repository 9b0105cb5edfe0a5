"""The options of a client's TCP socket."""

from __future__ import annotations

import socket
from typing import Final

# A peer that vanished is noticed after 20 s, soon enough to resume before its session expires.
_KEEPALIVE: Final = (
    (socket.TCP_KEEPIDLE, 10),
    (socket.TCP_KEEPINTVL, 5),
    (socket.TCP_KEEPCNT, 2),
    (socket.TCP_USER_TIMEOUT, 20_000),
)


def tune(sock: socket.socket) -> None:
    """Send small messages at once, and notice a peer that vanished.  Raises OSError."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
