"""The forwarded ports of one session by their ids, and what the server tells about them.  Without I/O.

At most 256 connections of a listener wait to be taken; those beyond are closed at the server.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, Generic, Protocol, TypeVar

from execserver.client.errors import ExecServerError, ProtocolViolation, TransportClosed
from execserver.client.rules import wire
from execserver.protocol.lifting import JsonText
from execserver.protocol.own_methods import PORT_ACCEPTED, PORT_BYTES, PORT_CLOSED
from execserver.protocol.ports import (
    PortAcceptedNotification,
    PortAddress,
    PortClosedNotification,
    PortDataNotification,
)

MOST_ACCEPTED: Final = 256
MOST_DROPPING: Final = 1024  # a server has at most 256 streams of a session, and some are on their way


class OpenStream(Protocol):
    """What takes the bytes of one connection."""

    def deliver(self, note: PortDataNotification) -> None:
        """Take bytes; must not block."""

    def fail(self, error: ExecServerError) -> None:
        """Note that both directions have ended."""


S = TypeVar("S", bound=OpenStream)
Taken = TypeVar("Taken", contravariant=True)


class OpenListener(Protocol[Taken]):
    """What takes the connections to one listener."""

    def offer(self, stream: Taken) -> None:
        """Take a connection; must not block."""

    def waiting(self) -> int:
        """Return how many connections nobody has taken yet."""

    def end(self) -> None:
        """Note that no more will come."""


class PortTable(ABC, Generic[S]):
    """Streams and listeners; a subclass makes the streams, and closes at the server what nobody takes."""

    def __init__(self) -> None:
        self._streams: dict[str, S] = {}
        self._listeners: dict[str, OpenListener[S]] = {}

    def check_dropping(self, number: int) -> None:
        """Raise `ProtocolViolation` if so many unanswered requests to close allow no further one."""
        if number >= MOST_DROPPING:
            raise ProtocolViolation("the server passed on more connections than it may")

    @abstractmethod
    def made(self, port_id: str, peer: PortAddress, window_bytes: int) -> S:
        """Return a new stream of a connection that somebody made."""

    @abstractmethod
    def drop(self, port_id: str) -> None:
        """Close a stream at the server without waiting for the answer.

        Raises `ProtocolViolation` where `MOST_DROPPING` are unanswered.
        """

    def on_notification(self, method: str, params: JsonText) -> None:
        """Take what the server tells about ports.  Raises `ProtocolViolation` for an invalid notification."""
        if method == PORT_BYTES.name:
            self.on_data(wire.decode(PortDataNotification, params, method))
        elif method == PORT_CLOSED.name:
            closed = wire.decode(PortClosedNotification, params, method)
            self.on_closed(closed.port_id, closed.error)
        elif method == PORT_ACCEPTED.name:
            self.on_accepted(wire.decode(PortAcceptedNotification, params, method))

    def on_data(self, note: PortDataNotification) -> None:
        """Pass bytes to their stream."""
        stream = self._streams.get(note.port_id)
        if stream is not None:
            stream.deliver(note)

    def on_closed(self, port_id: str, error: str | None) -> None:
        """Note that a stream has ended."""
        stream = self._streams.get(port_id)
        if stream is not None:
            stream.fail(TransportClosed(error or "the connection has ended"))

    def on_accepted(self, note: PortAcceptedNotification) -> None:
        """Make a stream of a connection to a listener; an id that is taken already is no new connection."""
        if note.port_id in self._streams:
            return
        listener = self._listeners.get(note.listen_id)
        if listener is None or listener.waiting() >= MOST_ACCEPTED:
            self.drop(note.port_id)
            return
        stream = self._streams[note.port_id] = self.made(note.port_id, note.peer, note.window_bytes)
        listener.offer(stream)

    def on_ended(self, error: ExecServerError) -> None:
        """Fail everything: the session is over."""
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(error)
        listeners, self._listeners = self._listeners, {}
        for listener in listeners.values():
            listener.end()
