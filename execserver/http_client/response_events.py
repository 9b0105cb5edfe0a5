"""What a reader of responses says about one: its head, pieces of its body, its end, what is wrong with it."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple, Protocol

HEAD_BYTES = 64 * 1024  # of a response head; h11 needs 40 ms for the worst one of this size


class BrokenResponse(Exception):
    """The server broke the protocol or the connection."""


class Framing(Enum):
    """What a reader says where there is neither a head nor a piece of a body."""

    NEED_DATA = auto()
    ENDED = auto()


class ResponseHead(NamedTuple):
    """Status and header lines of a response, names in lower case."""

    status: int
    lines: list[tuple[bytes, bytes]]

    def first(self, name: bytes) -> bytes | None:
        """Return the first value of a name."""
        return next((value for each, value in self.lines if each == name), None)


ResponseEvent = ResponseHead | bytes | bytearray | Framing


class ResponseReader(Protocol):
    """Reads one response, and does no I/O."""

    @property
    def is_whole(self) -> bool:
        """True if all of the response is there."""

    @property
    def is_reusable(self) -> bool:
        """True if the connection may carry another request: both sides want it, and nothing is left over."""

    def receive_data(self, data: bytes) -> None:
        """Take what has arrived, nothing at its end."""

    def next_event(self) -> ResponseEvent:
        """Return the next head, interim ones too, or piece of the body, or what else there is to say."""
