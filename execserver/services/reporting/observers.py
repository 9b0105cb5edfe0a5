"""What a server tells those who watch it: metrics and the audit log, and nobody where neither is asked for.

Told in the event loop or in the greenlet that does what is told, so nothing here may block or raise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from execserver.access.identity import Identity

if TYPE_CHECKING:
    from execserver.protocol.envelope import Request
    from execserver.protocol.errors import RpcError
    from execserver.services.running.process import Process

SUCCESS, ERROR, DISCONNECTED = "success", "error", "disconnected"


class Who(NamedTuple):
    """For whom something is done; the session is empty before there is one."""

    session_id: str
    identity: Identity


class Answered(NamedTuple):
    """A request and its end: `success`, `error` with what was answered, or the client was gone before."""

    request: Request
    who: Who
    result: str
    error: RpcError | None
    seconds: float


class Started(NamedTuple):
    """A process that runs."""

    process: Process
    who: Who
    cwd: bytes
    is_sandboxed: bool


class Observer(Protocol):
    """Takes what happens."""

    def connected(self) -> None:
        """A client has connected."""

    def disconnected(self) -> None:
        """A client has left."""

    def answered(self, answered: Answered) -> None:
        """A request has ended."""

    def bad_trace(self) -> None:
        """A request's `traceparent` is none."""

    def process_started(self, started: Started) -> None:
        """A process runs."""

    def process_taken_over(self, process: Process) -> None:
        """A process runs that was started, and told of, by the server before this one."""

    def process_exited(self, process: Process) -> None:
        """A process was reaped."""

    def refusal(self, method: str) -> str | None:
        """Return why a request must not be worked on now, None if it may."""


class Observers:
    """Several observers as one."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def connected(self) -> None:
        """See `Observer`."""
        for each in self._observers:
            each.connected()

    def disconnected(self) -> None:
        """See `Observer`."""
        for each in self._observers:
            each.disconnected()

    def answered(self, answered: Answered) -> None:
        """See `Observer`."""
        for each in self._observers:
            each.answered(answered)

    def bad_trace(self) -> None:
        """See `Observer`."""
        for each in self._observers:
            each.bad_trace()

    def process_started(self, started: Started) -> None:
        """See `Observer`."""
        for each in self._observers:
            each.process_started(started)

    def process_taken_over(self, process: Process) -> None:
        """See `Observer`."""
        for each in self._observers:
            each.process_taken_over(process)

    def process_exited(self, process: Process) -> None:
        """See `Observer`."""
        for each in self._observers:
            each.process_exited(process)

    def refusal(self, method: str) -> str | None:
        """See `Observer`: one is enough."""
        return next((why for each in self._observers if (why := each.refusal(method)) is not None), None)
