"""What a transport must offer, so that one connection can be served over it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from execserver.services.clients.sink import MessageSink


class Outgoing(MessageSink, Protocol):
    """The outgoing side of a transport, as a connection uses it."""

    @property
    def queued(self) -> int:
        """Bytes that wait to be written."""

    def asked(self) -> None:
        """Note a request: if the peer lags behind, the answer must not wait behind much."""

    def flush(self) -> None:
        """Write what can be written now."""

    def stream(self, pieces: Iterable[bytes]) -> None:
        """Send one message in pieces; block this greenlet until the last one is queued."""


class Transport(Protocol):
    """A transport of whole messages.  It owns its descriptors.

    It calls `Receiver.receive` with the messages that arrived, and `Receiver.ended` once no more can come;
    both in the event loop, so neither may block.
    """

    @property
    def outbox(self) -> Outgoing:
        """Where answers and notifications go."""

    @property
    def malformed_prefix(self) -> str:
        """The beginning of the answer to a malformed message; empty if such a message ends the connection."""

    def pause(self) -> None:
        """Stop reading, so that the peer has to wait with further messages."""

    def resume(self) -> None:
        """Read again."""

    def close(self, code: int, reason: str) -> None:
        """End the conversation in order, once what is queued is written; `code` is a WebSocket close code."""


class Receiver(Protocol):
    """What takes the messages of a transport."""

    def receive(self, messages: list[bytes]) -> None:
        """Take messages that arrived, in order."""

    def ended(self) -> None:
        """Take the end: no message can come any more.  May be called more than once."""
