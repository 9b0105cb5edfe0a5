"""The side of `websockets` of a server's connection, for the frames that `wire.websocket` leaves to it.

Apart from that module, and loaded with the first such frame: it takes 12 ms, a tenth of the pause of an
upgrade, since the library loads a part of OpenSSL.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from websockets.exceptions import ProtocolError
from websockets.frames import Frame
from websockets.protocol import OPEN, SERVER, Protocol

from execserver.wire.ended_protocol import let_go

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["explained", "fail", "frames", "let_go", "server_protocol"]

# The library logs each closed connection; the server's own log reports it already.
_SILENT = logging.getLogger("execserver.wire.websocket")
_SILENT.setLevel(logging.CRITICAL)


def server_protocol(message_bytes: int, frame_bytes: int) -> Protocol:
    """Return the library's side of a connection that is open, with its limits in payload bytes."""
    return Protocol(SERVER, state=OPEN, max_size=(message_bytes, frame_bytes), logger=_SILENT)


def frames(protocol: Protocol, data: bytes | bytearray | memoryview) -> Iterator[Frame]:
    """Feed bytes, and return the frames that they completed."""
    protocol.receive_data(data)  # type: ignore[arg-type]  # it only appends to a bytearray
    return (event for event in protocol.events_received() if isinstance(event, Frame))


def fail(protocol: Protocol, code: int, reason: str) -> None:
    """Have a Close frame sent, unless one was."""
    if protocol.state is OPEN:
        protocol.fail(code, reason)


def explained(error: Exception) -> str:
    """Return why the library has ended a connection."""
    text = str(error) or type(error).__name__
    return f"protocol error: {text}" if isinstance(error, ProtocolError) else text
