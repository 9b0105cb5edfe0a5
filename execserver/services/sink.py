"""Where services put messages for a client, whatever its transport."""

from __future__ import annotations

from typing import Protocol


class MessageSink(Protocol):
    """The outgoing side of one connection."""

    @property
    def closed(self) -> bool:
        """True once nothing sent here can reach the client any more."""

    @property
    def has_room(self) -> bool:
        """Return whether at most the high-water mark is queued."""

    def send(self, message: bytes) -> None:
        """Queue one whole JSON message.  Never blocks; does nothing when closed."""

    def send_parts(self, *parts: bytes) -> None:
        """Queue one whole JSON message given in parts, without joining large ones."""

    def wait_for_room(self) -> bool:
        """Block this greenlet while more than the high-water mark is queued; return False when closed.

        Also waits a short, limited time for a client that has received much and not read it.
        """
