"""A connection whose requests are worked on several at a time, for servers that are asked for that.

Whether a request is allowed now is decided in the order in which requests come (`handlers.dispatch`).  Then
it gets a greenlet of its own and waits for those before it in its lane (`handlers.lanes`); its answer is sent
when it is ready.  What is already worked on when the client leaves is brought to its end.

Bounds: `concurrent_requests` of the settings, at most `MAX_RUNNING`; `WAITING_BYTES` of their requests.  At a
bound the connection waits, and its inbox fills.  Answers that wait for something are bounded as on any
connection, and are not counted here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from gevent import Greenlet, iwait, joinall
from gevent.lock import Semaphore

from execserver.core.lanes import Lanes
from execserver.handlers.context import Call
from execserver.handlers.dispatch import checked, handle
from execserver.handlers.guard import guarded
from execserver.handlers.lanes import AT_ONCE, Lane, lane_of
from execserver.handlers.replies import started
from execserver.protocol.envelope import Request
from execserver.protocol.errors import RpcError
from execserver.protocol.methods import Method
from execserver.transports.connection import WAITING_BYTES, Connection
from execserver.transports.transport import Transport
from execserver.wire.close_codes import INTERNAL_ERROR

MAX_RUNNING = 256

if TYPE_CHECKING:
    _Work = Greenlet[..., None]


class ConcurrentConnection(Connection):
    """One client, as `Connection`; several of its requests at a time."""

    def __init__(self, transport: Transport, call: Call, on_end: Callable[[], object]) -> None:
        super().__init__(transport, call, on_end)
        self._inbox.let_go()  # nothing is answered in the event loop: it would come before its turn
        self._places = min(call.connection.concurrent_requests, MAX_RUNNING)
        self._running: dict[_Work, tuple[Lane, Request]] = {}
        self._running_bytes = 0
        self._lanes: Lanes[_Work] = Lanes()
        self._pieces = Semaphore()  # one message goes out in pieces at a time

    @property
    def unfinished(self) -> list[Request]:
        """See `Connection`; those that wait for their turn are among them."""
        running = [request for work, (_, request) in self._running.items() if not work.ready()]
        return super().unfinished + [request for request in running if request is not self._in_hand]

    def _answer(self, request: Request) -> None:
        try:
            method, params = guarded(request.method, lambda: checked(self._call, request))
        except RpcError as error:
            self._refuse(request, error)
            return
        lane = lane_of(method, params)
        if lane is not None:
            self._begin(request, method, params, lane)
            return
        if method.name not in AT_ONCE:
            joinall(list(self._running))
        self._work(request, method, params, [])

    def _begin(self, request: Request, method: Method[Any, Any], params: object, lane: Lane) -> None:
        while len(self._running) >= self._places or self._running_bytes > WAITING_BYTES:
            next(iwait(list(self._running)))
        before: list[_Work] = []
        work: _Work = Greenlet(self._work, request, method, params, before)
        before += self._lanes.enter(lane.key, work, alone=lane.alone)
        self._running[work] = (lane, request)
        self._running_bytes += len(request.params)
        work.link(self._done)
        work.start()

    def _done(self, work: _Work) -> None:
        lane, request = self._running.pop(work)
        self._running_bytes -= len(request.params)
        self._lanes.leave(lane.key, work)

    def _work(self, request: Request, method: Method[Any, Any], params: object, before: list[_Work]) -> None:
        """Answer a request once those before it are done."""
        joinall(before)
        before.clear()
        try:
            answer = guarded(method.name, lambda: started(handle(self._call, method, params)))
        except RpcError as error:
            self._refuse(request, error)
            return
        try:
            guarded(method.name, lambda: self._give(request, answer))
        except RpcError:  # the answer has begun, so it cannot become an error
            self._fail(INTERNAL_ERROR, "internal error")

    def _stream(self, request: Request, pieces: Iterator[bytes]) -> None:
        with self._pieces:
            super()._stream(request, pieces)

    def _finish(self) -> None:
        self.ended()
        joinall(list(self._running))  # they use what the connection closes
        super()._finish()
