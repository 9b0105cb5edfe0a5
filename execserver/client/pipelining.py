"""Input of a process with several writes under way, for greenlets; `write_window` has the rules."""

from __future__ import annotations

from collections.abc import Iterable

from execserver.client.calls import Outcome
from execserver.client.connection import Connection, Posted
from execserver.client.process_state import ProcessState
from execserver.client.session import Session
from execserver.client.write_window import Steps, WriteWindow
from execserver.protocol.process import WriteParams, WriteResponse
from execserver.protocol.process_methods import PROCESS_WRITE


def write_all(session: Session, known: ProcessState, pieces: Iterable[bytes]) -> None:
    """Write all pieces, and wait for the last answer.  Raises as `RemoteProcess.write` does."""
    window = WriteWindow(_Line(session), known)
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

    def __init__(self, session: Session) -> None:
        self._session = session

    def connection(self) -> Connection:
        """See `Line`."""
        return self._session.connection()

    def post(self, connection: Connection, params: WriteParams) -> Posted:
        """See `Line`."""
        return connection.post(PROCESS_WRITE.name, params)

    def outcome(self, posted: Posted) -> Outcome:
        """See `Line`."""
        return posted.outcome()

    def send_again(self, params: WriteParams) -> WriteResponse:
        """See `Line`."""
        return self._session.call(PROCESS_WRITE, params, resend=True)
