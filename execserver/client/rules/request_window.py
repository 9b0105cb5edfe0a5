"""Requests with data of which several are under way: what to send when, without I/O, for every client.

The server carries out the requests of one connection in order.  When that connection is lost, what was not
answered is sent again on the next one, one after the other, before anything else; so this is for requests
that may be sent twice, such as writes with an id or an offset.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from execserver.client.errors import ExecServerError, TransportClosed, kept
from execserver.client.rules import wire
from execserver.protocol.method import Method

WINDOW_REQUESTS: Final = 16  # fewer than other executors' relay streams bear
PARTS_BYTES: Final = 4 * 1024 * 1024  # of pieces of a file, the largest of which have 1 MiB as a rule

R = TypeVar("R", bound=msgspec.Struct)
Steps: TypeAlias = Generator[Callable[[], Any], Any, None]
"""What is to be done, one call after the other; what each of them comes to is sent in."""


class WithChunk(Protocol):
    """Params with data."""

    @property
    def chunk(self) -> bytes:
        """The data."""


class Line(Protocol):
    """A client's way to the server for one method.

    Its methods block, or return what whoever takes the steps awaits.
    """

    def connection(self) -> Any:
        """Return the live connection; wait for one."""

    def post(self, connection: Any, params: Any) -> Any:
        """Send a request on just this connection; return what `outcome` takes, also if it is lost."""

    def outcome(self, posted: Any) -> Any:
        """Wait for the answer to a request, JSON text, or the error in its place."""

    def send_again(self, params: Any) -> Any:
        """Send a request on whatever connection there is, and return the result."""


class _Request(NamedTuple):
    params: WithChunk
    posted: Any


class RequestWindow(Generic[R]):
    """The requests of one caller that are under way: at most `most_bytes`, or a single larger one.

    `settled` takes each result, in order, and may raise.
    """

    def __init__(
        self, line: Line, method: Method[Any, R], settled: Callable[[R], object], most_bytes: int
    ) -> None:
        self._line = line
        self._method = method
        self._settled = settled
        self._most_bytes = most_bytes
        self._connection: object = None  # on which all of them were sent
        self._under_way: deque[_Request] = deque()
        self._bytes = 0

    def push(self, params: WithChunk) -> Steps:
        """Send a request as soon as there is room.  Raises as a request does that came before it."""
        while self._is_full_for(len(params.chunk)):
            yield from self._settle()
        connection = yield self._line.connection
        while self._under_way and connection is not self._connection:
            yield from self.finish()  # first what the lost connection may not have delivered
            connection = yield self._line.connection
        self._connection = connection
        posted = yield partial(self._line.post, connection, params)
        self._bytes += len(params.chunk)
        self._under_way.append(_Request(params, posted))

    def finish(self) -> Steps:
        """Wait for all answers."""
        while self._under_way:
            yield from self._settle()

    def _is_full_for(self, size: int) -> bool:
        if not self._under_way:
            return False
        return self._bytes + size > self._most_bytes or len(self._under_way) >= WINDOW_REQUESTS

    def _settle(self) -> Steps:
        """Wait for the answer to the oldest request; send it again if that is lost."""
        params, posted = self._under_way.popleft()
        self._bytes -= len(params.chunk)
        outcome = yield partial(self._line.outcome, posted)
        if isinstance(outcome, TransportClosed):
            result = yield partial(self._line.send_again, params)
        elif isinstance(outcome, ExecServerError):
            raise kept(outcome)
        else:
            result = wire.decode(self._method.result, outcome, self._method.name)
        self._settled(result)
