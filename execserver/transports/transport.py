"""What a carrier must offer so that one connection can be served over it."""

from __future__ import annotations

from typing import Protocol

from execserver.transports.outbox import Outbox


class Transport(Protocol):
    """One carrier of whole messages.  It owns its descriptors.

    The transport calls `Receiver.receive` with the messages that arrived and `Receiver.ended` once no more
    can come; both in the event loop, so neither may block.
    """

    outbox: Outbox

    @property
    def malformed_prefix(self) -> str:
        """How the answer to an unreadable message begins."""

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
