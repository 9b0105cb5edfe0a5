"""The transport interface of the client.

Everything above it (requests, sessions, resuming, processes) knows only this.
"""

from __future__ import annotations

from typing import Protocol


class Transport(Protocol):
    """One connection that carries whole JSON messages in both directions.

    One greenlet calls `receive`; any number call `send`; anyone may call `close`, which wakes them all.
    """

    def receive(self) -> bytes | None:
        """Return the next message, or None when the peer has ended the connection.

        Raises `TransportClosed` when the connection broke, `ProtocolViolation` when the peer broke the rules
        of the transport or exceeded a size limit.
        """

    def send(self, message: bytes) -> None:
        """Send one whole message; blocks while the peer does not read.  Raises `TransportClosed`."""

    def close(self) -> None:
        """Close the connection.  May be called again."""
