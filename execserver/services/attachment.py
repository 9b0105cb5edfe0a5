"""Which client hears from the processes of a session, if any."""

from __future__ import annotations

from execserver.services.sink import MessageSink


class Attachment:
    """Shared by all processes of one session; `sink` is None while the session is detached."""

    __slots__ = ("sink",)

    def __init__(self) -> None:
        self.sink: MessageSink | None = None

    def send(self, *parts: bytes) -> None:
        """Send one message given in parts, or drop it: a detached client reads what it missed.

        An empty message is none.
        """
        if self.sink is not None and any(parts):
            self.sink.send_parts(*parts)

    @property
    def has_room(self) -> bool:
        """Tell whether a producer may go on without waiting."""
        return self.sink is None or self.sink.has_room

    def wait_for_room(self) -> None:
        """Block a producer while the attached client does not read; nobody attached means no wait."""
        while (sink := self.sink) is not None:
            if sink.wait_for_room():
                return
            if self.sink is sink:  # it closed and nobody has said so yet
                self.sink = None
