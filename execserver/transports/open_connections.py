"""The connections by one way, and what becomes of them when another program takes the server's place."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from execserver.transports.connection import Connection
from execserver.transports.transport import Outgoing, Transport
from execserver.wire.close_codes import SERVICE_RESTART


class Sending(Outgoing, Protocol):
    """The outgoing side of a connection that may be handed over."""

    @property
    def is_amid_message(self) -> bool:
        """True while a message is sent of which a part is not there yet."""


class Closable(Transport, Protocol):
    """The transport of such a connection."""

    @property
    def outbox(self) -> Sending:
        """Where answers and notifications go."""

    @property
    def is_open(self) -> bool:
        """False once it is being closed."""


T = TypeVar("T", bound=Closable)


class OpenConnections(Generic[T]):
    """Connections by their transports, from their first message until `discard`."""

    def __init__(self, *, may_go: bool = True) -> None:
        """Without `may_go` none of them is handed over: each is closed before."""
        self._may_go = may_go
        self._all: dict[T, Connection] = {}
        self._is_held = False
        self._given_up: list[T] = []  # of requests that go on though they were answered

    def __len__(self) -> int:
        return len(self._all)

    def pairs(self) -> list[tuple[T, Connection]]:
        """Return all transports and their connections."""
        return list(self._all.items())

    def add(self, transport: T, connection: Connection) -> None:
        """Take a connection that begins."""
        if self._is_held:
            connection.hold()
        self._all[transport] = connection

    def discard(self, transport: T) -> None:
        """Forget a connection that has ended."""
        self._all.pop(transport, None)

    def hold(self) -> None:
        """Begin with no further request; what is worked on goes on."""
        self._is_held = True
        for connection in self._all.values():
            connection.hold()

    def release(self) -> None:
        """Handle requests again."""
        self._is_held = False
        given_up, self._given_up = self._given_up, []
        for transport in given_up:  # what is still done for them has its answer
            transport.close(SERVICE_RESTART, "the server was not upgraded after all")
        for _, connection in self.pairs():
            connection.release()

    @property
    def is_busy(self) -> bool:
        """True while there is something that cannot be handed over."""
        return self.is_leaving or any(
            transport.outbox.is_amid_message or connection.unfinished
            for transport, connection in self._all.items()
        )

    @property
    def is_leaving(self) -> bool:
        """True while a connection is being closed."""
        return any(not transport.is_open for transport in self._all)

    def finish_gone(self) -> None:
        """Have what clients sent before they left be handled: it cannot be handed over."""
        for transport, connection in self.pairs():
            if not transport.is_open:
                connection.release()

    def give_up_rest(self, reason: str) -> None:
        """End what cannot be handed over, and say why to each client that it concerns."""
        for transport, connection in self.pairs():
            if self._may_go and not transport.outbox.is_amid_message:
                if connection.unfinished:
                    self._given_up.append(transport)
                connection.fail_unfinished(reason)
            else:
                transport.close(SERVICE_RESTART, reason)
