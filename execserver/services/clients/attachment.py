"""The session attachment: which client, if any, gets the notifications of a session's processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from execserver.services.clients.sink import MessageSink

if TYPE_CHECKING:
    from execserver.services.clients.questions import Questions


class Attachment:
    """Shared by all processes of one session; `sink` is None while the session is detached.

    `questions` are what the server asks the client that holds the session now, None if nobody does.
    `knows_watchers`: its client has used what only this server has, and is told who writes.
    """

    __slots__ = ("knows_watchers", "questions", "sink")

    def __init__(self) -> None:
        self.sink: MessageSink | None = None
        self.questions: Questions | None = None
        self.knows_watchers = False

    def send(self, *parts: bytes) -> None:
        """Send one message given in parts; drop it while detached, since a client can read what it missed.

        An empty message is not sent.
        """
        if self.sink is not None and any(parts):
            self.sink.send_parts(*parts)

    def send_at_once(self, message: bytes) -> None:
        """Do as `send` with a short message, which is written in this turn unless others are ahead of it."""
        sink = self.sink
        if sink is not None and not sink.try_send(message):
            sink.send(message)

    @property
    def carries_binary(self) -> bool:
        """Return whether the attached client can be sent messages in binary form."""
        return self.sink is not None and self.sink.carries_binary

    def send_binary(self, *parts: bytes) -> None:
        """Send one message in binary form, where that is carried."""
        if self.sink is not None:
            self.sink.send_binary(*parts)

    @property
    def has_room(self) -> bool:
        """Return whether a producer may go on without waiting."""
        return self.sink is None or self.sink.has_room

    @property
    def may_go_on(self) -> bool:
        """Return whether `wait_for_room` would return at once."""
        return self.sink is None or self.sink.may_go_on

    def wait_for_room(self) -> None:
        """Block a producer while the attached client does not read; return at once while detached."""
        # A loop: during the wait the session may have been resumed on another connection.
        while (sink := self.sink) is not None:
            if sink.wait_for_room():
                return
            if self.sink is sink:  # the connection closed, and has not been detached yet
                self.sink = None
