"""The server's side of SOCKS 5 (RFC 1928) for `CONNECT` without sign-in; whoever reaches the port may use it.

A client has 10 s to say what it wants, and says it in at most 600 bytes.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import Final

import gevent

from execserver.box.ports.forwards import Place
from execserver.eventloop.ends import End

GRANTED, FAILED, NOT_ALLOWED, REFUSED = 0, 1, 2, 5
_UNKNOWN_COMMAND, _UNKNOWN_ADDRESS = 7, 8
_VERSION: Final = 5
_NO_SIGN_IN, _NOTHING_FITS = 0, 0xFF
_CONNECT: Final = 1
_V4, _NAME, _V6 = 1, 3, 4
_LIMIT_S: Final = 10.0


class NoRequest(Exception):
    """What came is no SOCKS request that can be served."""


def wanted(sock: End) -> Place:
    """Return where a client wants to go; the answer is still to come.  Raises NoRequest, OSError."""
    with gevent.Timeout(_LIMIT_S, NoRequest("it took too long")):
        version, count = _exactly(sock, 2)
        methods = _exactly(sock, count)
        if version != _VERSION or _NO_SIGN_IN not in methods:
            sock.sendall(bytes((_VERSION, _NOTHING_FITS)))
            raise NoRequest("it is not SOCKS 5 without sign-in")
        sock.sendall(bytes((_VERSION, _NO_SIGN_IN)))
        version, command, _, kind = _exactly(sock, 4)
        host = _host(sock, kind)
        port = int.from_bytes(_exactly(sock, 2), "big")
    if version != _VERSION or command != _CONNECT or host is None or not port:
        answer(sock, _UNKNOWN_ADDRESS if host is None else _UNKNOWN_COMMAND)
        raise NoRequest("it asks for something else than a connection")
    return Place(host, port)


def answer(sock: End, code: int) -> None:
    """Tell the client what became of its request.  Raises OSError."""
    sock.sendall(bytes((_VERSION, code, 0, _V4, 0, 0, 0, 0, 0, 0)))


def _host(sock: End, kind: int) -> str | None:
    if kind == _V4:
        return str(IPv4Address(_exactly(sock, 4)))
    if kind == _V6:
        return str(IPv6Address(_exactly(sock, 16)))
    if kind != _NAME:
        return None
    name = _exactly(sock, _exactly(sock, 1)[0])
    return name.decode("ascii") if name.isascii() and name and name.decode("ascii").isprintable() else None


def _exactly(sock: End, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise NoRequest("it ended early")
        data += piece
    return data
