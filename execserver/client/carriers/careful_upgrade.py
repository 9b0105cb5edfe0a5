"""Answers to an upgrade that are not the usual one: the `websockets` library decides, and words refusals.

No I/O: what arrives is fed in.
"""

from __future__ import annotations

from typing import Final

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.protocol import CONNECTING
from websockets.uri import WebSocketURI

from execserver.client.carriers.urls import Address
from execserver.client.errors import ConnectFailed
from execserver.wire.client_upgrade import HEAD_END
from execserver.wire.ended_protocol import let_go

_BODY_SHOWN: Final = 200
_MAX_HEAD_BYTES: Final = 2 * 1024 * 1024  # above 128 lines of 8 KiB
_BEGINNING: Final = b"HTTP/1."


class CarefulUpgrade:
    """One answer as it arrives."""

    def __init__(self, address: Address, key: str) -> None:
        """Wait for the answer to the request with this key."""
        path, _, query = address.resource.partition("?")
        self._protocol = ClientProtocol(WebSocketURI(address.secure, address.host, address.port, path, query))
        self._protocol.key = key
        self._received: bytearray | None = bytearray()  # of the head; None once it is complete

    def feed(self, data: bytes) -> bytes | None:
        """Take received bytes, b"" for their end; return the bytes behind the head once it is accepted.

        Returns None while more is needed.  Raises `ConnectFailed` for a refusal.
        """
        if self._received is None:
            return self._give_body(data)
        self._received += data
        if data and HEAD_END not in self._received and _may_be_head(self._received):
            return None
        head, end, early = bytes(self._received).partition(HEAD_END)
        self._received = None
        # What comes behind the head is for the owner of the frames, unless it is the body of a refusal.
        self._protocol.receive_data(head + end)
        if not end:
            self._protocol.receive_eof()
        if self._is_decided():
            return early
        return self._give_body(early) if early or not data else None

    def let_go(self) -> None:
        """Free the library's reference cycles; nothing can be fed after this."""
        let_go(self._protocol)

    def _give_body(self, data: bytes) -> bytes | None:
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        return b"" if self._is_decided() else None

    def _is_decided(self) -> bool:
        """Return whether the answer is accepted.  Raises `ConnectFailed`."""
        refusal = self._protocol.handshake_exc
        if refusal is not None:
            raise ConnectFailed(_refusal(refusal)) from refusal
        return self._protocol.state is not CONNECTING


def _may_be_head(received: bytearray) -> bool:
    """True while these bytes may begin a head; more than that many are none that the library takes."""
    return len(received) <= _MAX_HEAD_BYTES and _BEGINNING.startswith(received[: len(_BEGINNING)])


def _refusal(error: Exception) -> str:
    if isinstance(error, InvalidStatus):
        body = bytes(error.response.body or b"")[:_BODY_SHOWN].decode("utf-8", "replace").strip()
        return f"the server refused the connection with status {error.response.status_code} {body}".rstrip()
    return f"no WebSocket server there: {error}"
