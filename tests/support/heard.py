"""A client that reads everything: where the server's own layers send messages, and nobody is connected."""

from __future__ import annotations


class Heard:
    """A `MessageSink` that keeps what it is sent."""

    closed = False
    carries_binary = True
    has_room = may_go_on = True

    def __init__(self) -> None:
        self.messages: list[bytes] = []

    def send(self, message: bytes) -> None:
        """Keep a message."""
        self.messages.append(message)

    def send_parts(self, *parts: bytes) -> None:
        """Keep a message."""
        self.messages.append(b"".join(parts))

    send_binary = send_parts

    def try_send(self, message: bytes) -> bool:
        """Take nothing this way."""
        return False

    def wait_for_room(self) -> bool:
        """Wait for nothing."""
        return True

    def hold(self) -> None:
        """Do nothing."""

    release = hold
