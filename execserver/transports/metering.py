"""Connections that tell an observer how long each request took.

Loaded only where somebody observes: the others have nothing of it in their way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from execserver.handlers.context import Call
from execserver.handlers.replies import Answer, Reply, Result
from execserver.protocol.envelope import Request
from execserver.protocol.errors import InternalError, RpcError
from execserver.services.reporting.observers import DISCONNECTED, ERROR, SUCCESS, Answered, Observer, Who
from execserver.transports.concurrent import ConcurrentConnection
from execserver.transports.connection import Connection
from execserver.transports.transport import Transport


class _Metered(Connection):
    """Notes when requests come, and tells how each ended.  Of two with one id, the earlier is not told."""

    def __init__(self, transport: Transport, call: Call, on_end: Callable[[], object]) -> None:
        super().__init__(transport, call, on_end)
        observer = call.services.observer
        assert observer is not None
        self._observer: Observer = observer
        self._under_way: dict[int | str, tuple[Request, float]] = {}
        observer.connected()

    def _arrived(self, request: Request) -> None:
        self._under_way[request.id] = request, time.monotonic()

    def _may_go_on(self, request: Request) -> bool:
        """Note a request; refuse it where an observer wants that."""
        self._arrived(request)
        why = self._observer.refusal(request.method)
        if why is not None:
            self._refuse(request, InternalError(why))
        return why is None

    def _refuse(self, request: Request, error: RpcError) -> None:
        self._answered(request.id, ERROR, error)
        super()._refuse(request, error)

    def _send_answer(self, request: Request, answer: Result | Reply, *, alone: bool = False) -> None:
        self._answered(request.id, SUCCESS)
        super()._send_answer(request, answer, alone=alone)

    def _stream(self, request: Request, pieces: Iterator[bytes]) -> None:
        super()._stream(request, pieces)
        self._answered(request.id, SUCCESS)

    def _finish(self) -> None:
        is_last = self._on_end is not None
        super()._finish()
        if is_last:
            for request_id in list(self._under_way):
                self._answered(request_id, DISCONNECTED)
            self._observer.disconnected()

    def _answered(self, request_id: int | str, result: str, error: RpcError | None = None) -> None:
        found = self._under_way.pop(request_id, None)
        if found is not None:
            request, began = found
            who = Who(self._call.session_id, self._call.connection.identity)
            self._observer.answered(Answered(request, who, result, error, time.monotonic() - began))


class MeteredConnection(_Metered):
    """One client, one request after the other."""

    def _dispatched(self, request: Request) -> Answer | None:
        return super()._dispatched(request) if self._may_go_on(request) else None


class MeteredConcurrentConnection(_Metered, ConcurrentConnection):
    """One client, several requests at a time."""

    def _answer(self, request: Request) -> None:
        if self._may_go_on(request):
            super()._answer(request)
