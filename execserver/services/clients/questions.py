"""Requests of the server to one client, and the client's answers (wire contract, section 8.9).

Ids count from 1 on each connection; the direction tells them from the client's own.  An answer to a request
that has run out of time is ignored; one to a request that was never made is not ours to take.

Limits: at most `MAX_OPEN` questions wait at a time, a further one gets no answer; the ids of the last
`REMEMBERED_LATE` that ran out are known.
"""

from __future__ import annotations

from gevent.event import AsyncResult

from execserver.protocol.envelope import ErrorMessage, Response, encode_request
from execserver.protocol.record import Record
from execserver.services.clients.sink import MessageSink

MAX_OPEN = 256
REMEMBERED_LATE = 1024

Answer = Response | ErrorMessage


class Questions:
    """The questions to the client of one connection."""

    __slots__ = ("_last", "_late", "_sink", "unanswered")

    def __init__(self, sink: MessageSink) -> None:
        self._sink = sink
        self._last = 0
        # The questions by their ids, None once the client is gone; others only look.
        self.unanswered: dict[int, AsyncResult[Answer | None]] | None = {}
        self._late: dict[int, None] = {}

    def pack(self) -> tuple[int, list[int]]:
        """Return what `restore` takes: who asked is no more, so answers that come are too late."""
        return self._last, [*self._late, *(self.unanswered or ())]

    def restore(self, last: int, late: list[int]) -> None:
        """Go on counting where another server has asked."""
        self._last = last
        self._late = dict.fromkeys(late[-REMEMBERED_LATE:])

    def ask(self, method: str, params: Record, timeout_s: float) -> Answer | None:
        """Ask the client and wait for its answer; None without one, at once where none can come."""
        if self.unanswered is None or self._sink.closed or len(self.unanswered) >= MAX_OPEN:
            return None
        self._last += 1
        number = self._last
        waiting: AsyncResult[Answer | None] = AsyncResult()
        self.unanswered[number] = waiting
        try:
            self._sink.send(encode_request(number, method, params))
            waiting.wait(timeout_s)
            return waiting.get() if waiting.ready() else None
        finally:
            if self.unanswered and self.unanswered.pop(number, None) is not None and not waiting.ready():
                self._expired(number)

    def answered(self, answer: object) -> bool:
        """Take an answer; return False if it belongs to no question."""
        if not isinstance(answer, Response | ErrorMessage) or self.unanswered is None:
            return False
        if not isinstance(answer.id, int):
            return False
        waiting = self.unanswered.pop(answer.id, None)
        if waiting is None:
            return self._late.pop(answer.id, _UNKNOWN) is None
        waiting.set(answer)
        return True

    def close(self) -> None:
        """End all questions without an answer: the client is gone."""
        waiting, self.unanswered = self.unanswered, None
        for each in (waiting or {}).values():
            each.set(None)

    def _expired(self, number: int) -> None:
        self._late[number] = None
        if len(self._late) > REMEMBERED_LATE:
            del self._late[next(iter(self._late))]


_UNKNOWN = object()
