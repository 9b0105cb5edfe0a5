"""Several writes under way, for greenlets: the rules are those of `write_window` and `port_window`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import gevent

from execserver.client.errors import RequestFailed
from execserver.client.greenlets.connection import Connection, Posted
from execserver.client.greenlets.session import Session
from execserver.client.rules.calls import Outcome
from execserver.client.rules.port_log import PortLog
from execserver.client.rules.port_window import PortWindow
from execserver.client.rules.process_state import ProcessState
from execserver.client.rules.recovery import too_late
from execserver.client.rules.request_window import PARTS_BYTES, RequestWindow, Steps
from execserver.client.rules.write_window import WriteWindow
from execserver.protocol.batches import FsWritePartParams
from execserver.protocol.method import Method
from execserver.protocol.own_methods import FS_WRITE_PART, PORT_DATA
from execserver.protocol.process_methods import PROCESS_WRITE


def write_all(session: Session, known: ProcessState, pieces: Iterable[bytes]) -> None:
    """Write all pieces, and wait for the last answer.  Raises as `RemoteProcess.write` does."""
    window = WriteWindow(_Line(session, PROCESS_WRITE), known)
    for piece in pieces:
        _take(window.push(piece))
    _take(window.finish())


def send_all(
    session: Session, log: PortLog, pieces: Iterable[bytes], refused: Callable[[], object] | None = None
) -> None:
    """Send all pieces, and wait for the last answer.  Raises as `PortStream.send_all` does."""
    window = PortWindow(_Line(session, PORT_DATA, refused=refused), log)
    _take(window.begin())
    for piece in pieces:
        _take(window.push(piece))
    _take(window.finish())


def write_parts(session: Session, pieces: Iterable[FsWritePartParams]) -> None:
    """Send all pieces of a file, and wait for the last answer.  Raises as `TreeMethods.write_parts` does."""
    line = _Line(session, FS_WRITE_PART, session.request_timeout)
    window = RequestWindow(line, FS_WRITE_PART, lambda answer: None, PARTS_BYTES)
    for piece in pieces:
        _take(window.push(piece))
    _take(window.finish())


def _take(steps: Steps) -> None:
    answer = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration:
            return
        answer = step()


class _Line:
    """The session of a client on gevent; each method blocks."""

    def __init__(
        self,
        session: Session,
        method: Method[Any, Any],
        limit_s: float | None = None,
        refused: Callable[[], object] | None = None,
    ) -> None:
        """`limit_s`: how long an answer may take; None where it is natural that one takes long.

        `refused` is called when an error comes as an answer, whether or not somebody asks for that yet.
        """
        self._session = session
        self._method = method
        self._limit_s = limit_s
        self._refused = refused

    def connection(self) -> Connection:
        """See `Line`."""
        return self._session.connection()

    def post(self, connection: Connection, params: object) -> Posted:
        """See `Line`."""
        posted = connection.post(self._method.name, params)
        if self._refused is not None:
            posted.watch(self._came)
        return posted

    def _came(self, outcome: Outcome) -> None:
        if self._refused is not None and isinstance(outcome, RequestFailed):
            self._refused()

    def outcome(self, posted: Posted) -> Outcome:
        """See `Line`.  Raises `WaitTimeout`."""
        limit_s = self._limit_s
        if limit_s is None:
            return posted.outcome()
        with gevent.Timeout(limit_s, too_late(self._method.name, limit_s)):
            return posted.outcome()

    def send_again(self, params: Any) -> Any:
        """See `Line`."""
        return self._session.call(self._method, params, resend=True)
