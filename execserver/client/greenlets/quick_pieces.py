"""Pieces for a forwarded connection that go out at once, also from the event loop, and before answers come.

At most `WINDOW_REQUESTS` are under way, and the server's window.  Where one cannot go out at once, its caller
sends it the usual way, after `finish`.  `attention` is called when nothing is under way any more, when a
piece was refused, and when the connection was lost; then whoever sends next sends again what was not
answered.
"""

from __future__ import annotations

from collections.abc import Callable

from gevent.event import Event

from execserver.client.errors import ExecServerError, TransportClosed, kept
from execserver.client.greenlets.session import Session
from execserver.client.rules import wire
from execserver.client.rules.calls import Outcome
from execserver.client.rules.port_log import PortLog
from execserver.client.rules.request_window import WINDOW_REQUESTS
from execserver.protocol.own_methods import PORT_DATA


class QuickPieces:
    """The pieces of one stream that went out at once.  It is itself the `Waiter` for all their answers."""

    __slots__ = ("_attention", "_bytes", "_failure", "_is_lost", "_log", "_session", "_settled", "_under_way")

    def __init__(self, session: Session, log: PortLog, attention: Callable[[], object]) -> None:
        self._session = session
        self._log = log
        self._attention = attention
        self._under_way = 0
        self._bytes = 0  # of them
        self._failure: ExecServerError | None = None
        self._is_lost = False
        self._settled: Event | None = None  # while somebody waits

    @property
    def needs_finish(self) -> bool:
        """True if a piece was lost or refused."""
        return self._is_lost or self._failure is not None

    @property
    def is_settled(self) -> bool:
        """True if all pieces were answered."""
        return not (self._under_way or self._is_lost)

    def send(self, data: bytes, *, eof: bool = False) -> bool:
        """Send a piece; return False, with nothing sent, where that cannot be now.

        Raises what ended the stream.
        """
        log, connection = self._log, self._session.at_hand
        if connection is None or self._is_lost or self._failure is not None:
            return False
        size = self._bytes + len(data)
        if len(data) > log.piece_bytes or size > log.window_bytes or self._under_way >= WINDOW_REQUESTS:
            return False
        params = log.piece(data, eof=eof)
        if not connection.send_at_once(PORT_DATA.name, params, self):
            log.take_back()
            return False
        self._under_way += 1
        self._bytes = size
        return True

    def finish(self) -> None:
        """Wait until all are answered or lost.  Raises why one was refused."""
        while self._under_way:
            self._settled = Event()
            with self._session.waiting():
                self._settled.wait()
        if self._failure is not None:
            raise kept(self._failure)
        self._is_lost, self._bytes = False, 0

    def set(self, value: Outcome) -> None:
        """Take the answer to the oldest piece (see `connection.Waiter`)."""
        self._under_way -= 1
        if isinstance(value, TransportClosed):
            self._is_lost = True  # the log keeps the piece
        elif isinstance(value, ExecServerError):
            self._failure = self._failure or kept(value)
        else:
            self._settle(value)
        if self._under_way and not self.needs_finish:
            return
        if self._settled is not None:
            self._settled.set()
        self._attention()

    def _settle(self, value: Outcome) -> None:
        try:
            wire.decode(PORT_DATA.result, value, PORT_DATA.name)  # type: ignore[arg-type]
        except ExecServerError as error:
            self._failure = self._failure or kept(error)
        else:
            self._bytes -= self._log.settle()
