"""Input of a process with several writes under way: what to send when, without I/O, for every client.

The server carries out the requests of one connection in order.  When that connection is lost, what was not
answered is sent again on the next one, one after the other and under its old id, before anything else: the
server writes nothing twice, and nothing in another order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from execserver.client import wire
from execserver.client.errors import ExecServerError, TransportClosed, kept
from execserver.client.process_state import ProcessState
from execserver.protocol.process import WriteParams
from execserver.protocol.process_methods import PROCESS_WRITE

WINDOW_BYTES: Final = 1024 * 1024
WINDOW_WRITES: Final = 16  # fewer than other executors' relay streams bear

Steps: TypeAlias = Generator[Callable[[], Any], Any, None]
"""What is to be done, one call after the other; what each of them comes to is sent in."""


class Line(Protocol):
    """A client's way to the server.  It blocks, or returns what whoever takes the steps awaits."""

    def connection(self) -> Any:
        """Return the live connection; wait for one."""

    def post(self, connection: Any, params: WriteParams) -> Any:
        """Send a write on just this connection; return what `outcome` takes, also if it is lost."""

    def outcome(self, posted: Any) -> Any:
        """Wait for the answer to a write, JSON text, or the error in its place."""

    def send_again(self, params: WriteParams) -> Any:
        """Send a write on whatever connection there is, and return the result."""


class _Write(NamedTuple):
    params: WriteParams
    posted: Any


class WriteWindow:
    """The writes of one caller that are under way: at most `WINDOW_BYTES`, or a single larger one."""

    def __init__(self, line: Line, known: ProcessState) -> None:
        self._line = line
        self._known = known
        self._connection: object = None  # on which all of them were sent
        self._under_way: deque[_Write] = deque()
        self._bytes = 0

    def push(self, piece: bytes | int) -> Steps:
        """Send a piece as soon as the window has room.  Raises as a write does that came before it."""
        if isinstance(piece, int):  # of somebody who gave one piece, and no pieces
            raise TypeError("write_all takes several pieces of bytes; write takes one")
        for params in self._known.writing(piece):
            while self._is_full_for(len(params.chunk)):
                yield from self._settle()
            yield from self._send(params)

    def finish(self) -> Steps:
        """Wait for all answers."""
        while self._under_way:
            yield from self._settle()

    def _is_full_for(self, size: int) -> bool:
        if not self._under_way:
            return False
        return self._bytes + size > WINDOW_BYTES or len(self._under_way) >= WINDOW_WRITES

    def _send(self, params: WriteParams) -> Steps:
        connection = yield self._line.connection
        while self._under_way and connection is not self._connection:
            yield from self.finish()  # first what the lost connection may not have delivered
            connection = yield self._line.connection
        self._connection = connection
        posted = yield partial(self._line.post, connection, params)
        self._bytes += len(params.chunk)
        self._under_way.append(_Write(params, posted))

    def _settle(self) -> Steps:
        """Wait for the answer to the oldest write; send it again if that is lost."""
        params, posted = self._under_way.popleft()
        self._bytes -= len(params.chunk)
        outcome = yield partial(self._line.outcome, posted)
        if isinstance(outcome, TransportClosed):
            status = (yield partial(self._line.send_again, params)).status
        elif isinstance(outcome, ExecServerError):
            raise kept(outcome)
        else:
            status = wire.decode(PROCESS_WRITE.result, outcome, PROCESS_WRITE.name).status
        self._known.check_written(status)
