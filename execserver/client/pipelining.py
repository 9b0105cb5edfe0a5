"""Input of a process with several writes under way: the next ones do not wait for the answer to the first.

The server carries out the requests of one connection in order.  When that connection is lost, what was not
answered is sent again on the next one, one after the other and under its old id, before anything else: the
server writes nothing twice, and nothing in another order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from execserver.client import wire
from execserver.client.connection import Connection, Posted
from execserver.client.errors import ExecServerError, TransportClosed, kept
from execserver.client.process_state import ProcessState
from execserver.client.session import Session
from execserver.protocol.process import WriteParams
from execserver.protocol.process_methods import PROCESS_WRITE

WINDOW_BYTES: Final = 1024 * 1024
WINDOW_WRITES: Final = 16  # fewer than other executors' relay streams bear


class _Write(NamedTuple):
    params: WriteParams
    posted: Posted


class Pipeline:
    """The writes of one caller that are under way: at most `WINDOW_BYTES`, or a single larger one."""

    def __init__(self, session: Session, known: ProcessState) -> None:
        self._session = session
        self._known = known
        self._connection: Connection | None = None  # on which all of them were sent
        self._under_way: deque[_Write] = deque()
        self._bytes = 0

    def write_all(self, pieces: Iterable[bytes]) -> None:
        """Write all pieces, and wait for the last answer.  Raises as `RemoteProcess.write` does."""
        for piece in pieces:
            for params in self._known.writing(piece):
                self._make_room(len(params.chunk))
                self._send(params)
        self._settle_all()

    def _make_room(self, size: int) -> None:
        while self._under_way and (
            self._bytes + size > WINDOW_BYTES or len(self._under_way) >= WINDOW_WRITES
        ):
            self._settle()

    def _send(self, params: WriteParams) -> None:
        connection = self._session.connection()
        while self._under_way and connection is not self._connection:
            self._settle_all()  # first what the lost connection may not have delivered
            connection = self._session.connection()
        self._connection = connection
        self._bytes += len(params.chunk)
        self._under_way.append(_Write(params, connection.post(PROCESS_WRITE.name, params)))

    def _settle_all(self) -> None:
        while self._under_way:
            self._settle()

    def _settle(self) -> None:
        """Wait for the answer to the oldest write; send it again if that is lost."""
        params, posted = self._under_way.popleft()
        self._bytes -= len(params.chunk)
        outcome = posted.outcome()
        if isinstance(outcome, TransportClosed):
            status = self._session.call(PROCESS_WRITE, params, resend=True).status
        elif isinstance(outcome, ExecServerError):
            raise kept(outcome)
        else:
            status = wire.decode(PROCESS_WRITE.result, outcome, PROCESS_WRITE.name).status
        self._known.check_written(status)
