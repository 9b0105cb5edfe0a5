"""Answers to an upgrade that are not the usual one: the `websockets` library decides, and words refusals."""

from __future__ import annotations

from typing import Final

from gevent import socket
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.protocol import CONNECTING
from websockets.uri import WebSocketURI

from execserver.client.errors import ConnectFailed
from execserver.client.urls import Address
from execserver.wire.client_upgrade import HEAD_END
from execserver.wire.ended_protocol import let_go

_READ_BYTES: Final = 16 * 1024
_BODY_SHOWN: Final = 200
_MAX_HEAD_BYTES: Final = 2 * 1024 * 1024  # above 128 lines of 8 KiB
_BEGINNING: Final = b"HTTP/1."


def rest_of_upgrade(sock: socket.socket, address: Address, key: str, received: bytes) -> bytes:
    """Read the answer on from what was received; return the bytes behind its head.  Raises ConnectFailed."""
    path, _, query = address.resource.partition("?")
    protocol = ClientProtocol(WebSocketURI(address.secure, address.host, address.port, path, query))
    protocol.key = key
    try:
        return _decided(sock, protocol, received)
    finally:
        let_go(protocol)


def _decided(sock: socket.socket, protocol: ClientProtocol, received: bytes) -> bytes:
    # What comes behind the head is for the owner of the frames, unless it is the body of a refusal.
    while HEAD_END not in received and _may_be_head(received) and (more := sock.recv(_READ_BYTES)):
        received += more
    head, end, early = received.partition(HEAD_END)
    protocol.receive_data(head + end)
    if not end:
        protocol.receive_eof()
    while protocol.state is CONNECTING and protocol.handshake_exc is None:
        if data := early or sock.recv(_READ_BYTES):
            protocol.receive_data(data)
        else:
            protocol.receive_eof()
        early = b""
    if protocol.handshake_exc is not None:
        raise ConnectFailed(_refusal(protocol.handshake_exc)) from protocol.handshake_exc
    return early


def _may_be_head(received: bytes) -> bool:
    """True while these bytes may begin a head; more than that many are none that the library takes."""
    return len(received) <= _MAX_HEAD_BYTES and _BEGINNING.startswith(received[: len(_BEGINNING)])


def _refusal(error: Exception) -> str:
    if isinstance(error, InvalidStatus):
        body = bytes(error.response.body or b"")[:_BODY_SHOWN].decode("utf-8", "replace").strip()
        return f"the server refused the connection with status {error.response.status_code} {body}".rstrip()
    return f"no WebSocket server there: {error}"
