"""The transport interface of the client.

Everything above it (requests, sessions, resuming, processes) knows only this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Transport(Protocol):
    """One connection that carries whole JSON messages in both directions.

    One greenlet calls `receive`; any number call `send`; anyone may call `close`, which wakes them all.
    """

    @property
    def carries_binary(self) -> bool:
        """Whether messages may hold any bytes, as their binary form does."""

    def receive(self) -> bytes | None:
        """Return the next message, or None when the peer has ended the connection.

        Raises `TransportClosed` when the connection broke, `ProtocolViolation` when the peer broke the rules
        of the transport or exceeded a size limit.
        """

    def send(self, message: bytes) -> None:
        """Send one whole message; blocks while the peer does not read.  Raises `TransportClosed`."""

    def take_at_once(self, take: Callable[[bytes], bool]) -> None:
        """Have messages taken in the event loop, where this transport can; `receive` returns the others.

        `take` returns False for a message that it leaves to `receive`; it must not block.
        """

    def send_at_once(self, message: bytes) -> bool:
        """Send a short message without waiting; return False, with nothing sent, where that cannot be."""

    def close(self) -> None:
        """Close the connection.  May be called again."""


class Waiting:
    """A transport on which whoever sends or receives may have to wait, so that nothing is done at once."""

    __slots__ = ()
    carries_binary = False  # but for those that say otherwise

    def take_at_once(self, take: Callable[[bytes], bool]) -> None:
        """See `Transport`."""

    def send_at_once(self, message: bytes) -> bool:
        """See `Transport`."""
        return False
