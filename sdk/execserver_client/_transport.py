"""What a connection is to the layers above: whole JSON messages, one at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias


class Transport(Protocol):
    """One connection; owns its descriptors, which `close` closes."""

    @property
    def carries_binary(self) -> bool:
        """Whether messages may hold any bytes, as their binary form does."""

    async def receive(self) -> bytes | None:
        """Return the next message, or None once the peer has ended the connection.

        Raises `TransportClosed` when it broke, `ProtocolViolation` for what the peer must not send.
        """

    async def send(self, message: bytes) -> None:
        """Send one whole message; waits while the peer does not read.  Raises `TransportClosed`.

        A caller that is cancelled has sent the message or nothing, never a part.
        """

    async def close(self) -> None:
        """Close the connection and wait until nothing of it is left.  May be called again."""


OpenTransport: TypeAlias = Callable[[float], Awaitable[Transport]]
"""Makes a new connection within so many seconds.  Raises `ConnectFailed` or `ConnectTimeout`."""
