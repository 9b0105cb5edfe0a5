"""How a connection arrives: who may be at its other end by the nature of the socket, and what it is called.

A TCP connection proves nothing.  On a Unix socket the kernel says which user has connected; only the server's
own user and root are let in.
"""

from __future__ import annotations

import os
import socket
from typing import Any, NamedTuple, Protocol

from execserver.access.identity import NOBODY, Identity
from execserver.unix_socket import peer_uid

_ROOT = 0


class NotWelcome(Exception):
    """The connection ends before anything is read from it; the text is for the log."""


class Arrived(NamedTuple):
    """A connection whose bytes are HTTP now; without `is_tcp` the kernel knows nothing of its window."""

    sock: socket.socket
    peer: str
    identity: Identity
    is_tcp: bool


class Arrival(Protocol):
    """The way connections arrive at one listener; `may_wait` if `receive` may block its greenlet."""

    @property
    def may_wait(self) -> bool:
        """See above."""

    def receive(self, sock: socket.socket, address: Any) -> Arrived:
        """Return the connection.  Raises NotWelcome, OSError.

        What it returns is the caller's, and stands for the socket that it was given; when it raises, that one
        stays the caller's.
        """


class TcpArrival:
    """Plain TCP."""

    may_wait = False

    def receive(self, sock: socket.socket, address: Any) -> Arrived:
        """See `Arrival`."""
        return Arrived(sock, address_text(address), NOBODY, True)


class UnixArrival:
    """A Unix socket."""

    may_wait = False

    def receive(self, sock: socket.socket, address: Any) -> Arrived:
        """See `Arrival`."""
        uid = peer_uid(sock)
        if uid not in (os.geteuid(), _ROOT):
            raise NotWelcome(f"the user {uid} may not connect to this socket")
        return Arrived(sock, f"unix:{uid}", Identity("uid", str(uid)), False)


def address_text(address: Any) -> str:
    """Return `IP:PORT` of a TCP address, IPv6 in brackets."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def arrival_for(sock: socket.socket) -> Arrival:
    """Return the way connections arrive at a listening socket without TLS."""
    return UnixArrival() if sock.family == socket.AF_UNIX else TcpArrival()
