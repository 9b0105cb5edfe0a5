"""What a carrier must offer so that one connection can be served over it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from execserver.services.sink import MessageSink


class Outgoing(MessageSink, Protocol):
    """The outgoing side of a carrier, as the loop of a connection uses it."""

    @property
    def queued(self) -> int:
        """Bytes that wait to be written."""

    def flush(self) -> None:
        """Write what can be written now."""

    def stream(self, pieces: Iterable[bytes]) -> None:
        """Send one message in pieces; block this greenlet until the last one is queued."""


class Transport(Protocol):
    """One carrier of whole messages.  It owns its descriptors.

    The transport calls `Receiver.receive` with the messages that arrived and `Receiver.ended` once no more
    can come; both in the event loop, so neither may block.
    """

    @property
    def outbox(self) -> Outgoing:
        """Where answers and notifications go."""

    @property
    def malformed_prefix(self) -> str:
        """How the answer to an unreadable message begins; empty where such a message ends the connection."""

    def pause(self) -> None:
        """Stop reading, so that the peer is held back."""

    def resume(self) -> None:
        """Read again."""

    def close(self, code: int, reason: str) -> None:
        """End the conversation in good order once what is queued is written; the codes are WebSocket's."""


class Receiver(Protocol):
    """Who takes the messages of a transport."""

    def receive(self, messages: list[bytes]) -> None:
        """Take messages that arrived, in order."""

    def ended(self) -> None:
        """Note that no message can come any more; may be called more than once."""
