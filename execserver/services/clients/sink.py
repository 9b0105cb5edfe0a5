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

    def try_send(self, message: bytes) -> bool:
        """Write a message if that is done at once; else return False, and nothing has happened.

        Calls nobody back.
        """

    @property
    def carries_binary(self) -> bool:
        """Whether messages may hold any bytes, as their binary form does."""

    def send_binary(self, *parts: bytes) -> None:
        """Queue one message in binary form, where that is carried, otherwise as `send_parts`."""

    @property
    def may_go_on(self) -> bool:
        """Return whether `wait_for_room` would return True at once."""

    def wait_for_room(self) -> bool:
        """Block this greenlet while more than the high-water mark is queued; return False when closed.

        Also waits a short, limited time for a client that has received much and not read it.
        """

    def hold(self) -> None:
        """Begin to queue several messages, to be written together; `release` must follow in this turn."""

    def release(self) -> None:
        """Write what is queued, as far as that needs no waiting."""


class Pace(Protocol):
    """How fast a producer of output may go on."""

    @property
    def has_room(self) -> bool:
        """Return whether little is queued, though the client may lag behind."""

    @property
    def may_go_on(self) -> bool:
        """Return whether `wait_for_room` would return at once."""

    def wait_for_room(self) -> None:
        """Block this greenlet while there is no room."""
