"""What is allowed when on one connection (wire contract, section 6).

fresh --initialize--> greeted --initialized--> ready.  A failed `initialize` leaves the connection fresh;
`initialized` may be repeated.  Requests are refused with an answer; a wrong notification, a response or an
error from the client ends the connection, because nothing could be answered to it.
"""

from __future__ import annotations

import enum

from execserver.protocol.errors import InvalidRequest


class ConnectionPhase(enum.Enum):
    """How far the greeting of a connection has come."""

    FRESH = enum.auto()
    GREETED = enum.auto()
    READY = enum.auto()


class ProtocolViolation(Exception):
    """The client sent what nothing can be answered to; the text is the reason of the Close frame."""


class ConnectionRules:
    """The life cycle of one connection."""

    __slots__ = ("phase",)

    def __init__(self) -> None:
        self.phase = ConnectionPhase.FRESH

    def check_initialize(self) -> None:
        """Refuse a second `initialize` after one that succeeded."""
        if self.phase is not ConnectionPhase.FRESH:
            raise InvalidRequest("initialize may only be sent once per connection")

    def initialize_succeeded(self) -> None:
        """Note that `initialize` was answered with a result."""
        self.phase = ConnectionPhase.GREETED

    def check_request(self, family: str) -> None:
        """Refuse a method of `family` before the greeting is complete."""
        if self.phase is ConnectionPhase.FRESH:
            raise InvalidRequest(f"client must call initialize before using {family} methods")
        if self.phase is ConnectionPhase.GREETED:
            raise InvalidRequest(f"client must send initialized before using {family} methods")

    def notification(self, method: str) -> None:
        """Take a notification; raise `ProtocolViolation` unless it is `initialized` at a time it may come."""
        if method != "initialized":
            raise ProtocolViolation(f"unexpected notification `{method}`")
        if self.phase is ConnectionPhase.FRESH:
            raise ProtocolViolation("`initialized` was sent before `initialize` succeeded")
        self.phase = ConnectionPhase.READY
