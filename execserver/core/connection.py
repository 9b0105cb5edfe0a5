"""The life cycle of one connection: what its client may send when (wire contract, section 6).

fresh --initialize--> greeted --initialized--> ready.  A failed `initialize` leaves the connection fresh;
`initialized` may be repeated.  A request at the wrong time gets an error.  A wrong notification, a response
or an error from the client ends the connection, because those have no answer.
"""

from __future__ import annotations

import enum
from typing import Final

from execserver.protocol.errors import InvalidRequest


class ConnectionPhase(enum.Enum):
    """How far the initialization of a connection has come."""

    FRESH = enum.auto()
    GREETED = enum.auto()
    READY = enum.auto()


# Each request asks, and looking a member up costs more than the rest of the check.
_FRESH: Final = ConnectionPhase.FRESH
_GREETED: Final = ConnectionPhase.GREETED
READY: Final = ConnectionPhase.READY


class ProtocolViolation(Exception):
    """The client sent a wrong message that has no answer; the text is the reason in the Close frame."""


class ConnectionRules:
    """The phase of one connection, and the checks that depend on it."""

    __slots__ = ("phase",)

    def __init__(self) -> None:
        self.phase = ConnectionPhase.FRESH

    def check_initialize(self) -> None:
        """Refuse a second `initialize` after one that succeeded."""
        if self.phase is not ConnectionPhase.FRESH:
            raise InvalidRequest("initialize may only be sent once per connection")

    def initialize_succeeded(self) -> None:
        """Record that `initialize` was answered with a result."""
        self.phase = ConnectionPhase.GREETED

    def check_request(self, family: str) -> None:
        """Refuse a method of `family` before the initialization is complete."""
        if self.phase is _FRESH:
            raise InvalidRequest(f"client must call initialize before using {family} methods")
        if self.phase is _GREETED:
            raise InvalidRequest(f"client must send initialized before using {family} methods")

    def notification(self, method: str) -> None:
        """Take a notification; raise `ProtocolViolation` unless it is `initialized` after `initialize`."""
        if method != "initialized":
            raise ProtocolViolation(f"unexpected notification `{method}`")
        if self.phase is ConnectionPhase.FRESH:
            raise ProtocolViolation("`initialized` was sent before `initialize` succeeded")
        self.phase = ConnectionPhase.READY
