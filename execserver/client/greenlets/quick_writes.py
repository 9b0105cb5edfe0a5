"""Short writes that go out at once, also from the event loop: a key waits for no greenlet, and no answer.

At most `WINDOW_REQUESTS` are under way.  Where one cannot go out at once, its caller writes it the usual way,
after `finish`.  When a connection is lost, `finish` sends again what was not answered, in order, under the
same ids; `attention` is called then, and when a write was refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from gevent.event import Event

from execserver.client.errors import ExecServerError, TransportClosed, kept
from execserver.client.greenlets.connection import ShortRequest
from execserver.client.greenlets.session import Session
from execserver.client.rules import wire
from execserver.client.rules.calls import Outcome
from execserver.client.rules.process_state import ProcessState
from execserver.client.rules.request_window import WINDOW_REQUESTS
from execserver.client.rules.write_template import METHOD
from execserver.protocol.process_methods import PROCESS_WRITE

SHORT_BYTES: Final = 4096  # 64 KiB under way, which a socket takes


class QuickWrites:
    """The writes of one caller to one process."""

    def __init__(self, session: Session, known: ProcessState, attention: Callable[[], object]) -> None:
        self._session = session
        self._known = known
        self.template = known.write_template()
        self._attention = attention
        self._under_way: deque[_Write] = deque()
        self._failure: ExecServerError | None = None
        self._is_lost = False
        self._settled: Event | None = None  # made by `finish` when it has to wait

    @property
    def needs_finish(self) -> bool:
        """True if a write was lost or refused."""
        return self._is_lost or self._failure is not None

    def send(self, data: bytes) -> bool:
        """Send a write; return False, with nothing sent, where that cannot be now."""
        connection = self._session.at_hand
        if connection is None or self._is_lost or self._failure is not None:
            return False
        if type(data) is not bytes or not 0 < len(data) <= SHORT_BYTES:
            return False
        if len(self._under_way) >= WINDOW_REQUESTS:
            return False
        write = _Write(self, self._known.next_write(), data)
        if not connection.send_short(write):
            return False
        self._under_way.append(write)
        return True

    def finish(self) -> None:
        """Wait until everything is answered, and send again what was lost.  Raises as a write does."""
        while self._under_way or self._failure is not None:
            if self._failure is not None:
                raise kept(self._failure)
            if self._is_lost:
                self._send_again()
            else:
                if self._settled is None:
                    self._settled = Event()
                with self._session.waiting():
                    self._settled.wait()
        self._is_lost = False

    def _send_again(self) -> None:
        while self._under_way:
            lost = self._under_way[0]
            params = self._known.numbered_piece(lost.number, lost.data)
            answer = self._session.call(PROCESS_WRITE, params, resend=True)
            self._under_way.popleft()
            self._known.check_written(answer.status)

    def answered(self, write: _Write, outcome: Outcome) -> None:
        """Take the answer to one write."""
        if isinstance(outcome, TransportClosed):
            self._is_lost = True  # it stays under way
        else:
            self._under_way.remove(write)
            if isinstance(outcome, ExecServerError):
                self._failure = self._failure or kept(outcome)
            elif outcome is not wire.ACCEPTED:
                self._check(outcome)
        is_over = self._is_lost or self._failure is not None
        if is_over:
            self._attention()
        if self._settled is not None and (is_over or not self._under_way):
            settled, self._settled = self._settled, None
            settled.set()

    def _check(self, outcome: Outcome) -> None:
        try:
            answer = wire.decode(PROCESS_WRITE.result, outcome, PROCESS_WRITE.name)  # type: ignore[arg-type]
            self._known.check_written(answer.status)
        except ExecServerError as error:
            self._failure = self._failure or kept(error)


class _Write(ShortRequest):
    """One write under way."""

    __slots__ = ("_owner", "data", "number")

    method = METHOD

    def __init__(self, owner: QuickWrites, number: int, data: bytes) -> None:
        self._owner = owner
        self.number = number
        self.data = data

    def message(self, call_id: int) -> bytes:
        """See `ShortRequest`."""
        return self._owner.template.request(call_id, self.number, self.data)

    def set(self, value: Outcome) -> None:
        """See `ShortRequest`."""
        self.slots.release()
        self._owner.answered(self, value)
