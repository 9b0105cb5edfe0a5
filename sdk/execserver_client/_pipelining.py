"""Several writes under way, for tasks: the rules are those of `write_window` and `port_window`."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable
from typing import Any, TypeVar

from execserver.client.errors import RequestFailed
from execserver.client.operations import trees
from execserver.client.rules.calls import Outcome
from execserver.client.rules.port_log import PortLog
from execserver.client.rules.port_window import PortWindow
from execserver.client.rules.process_state import ProcessState
from execserver.client.rules.request_window import PARTS_BYTES, RequestWindow, Steps
from execserver.client.rules.wire import RemotePath, Sandbox
from execserver.client.rules.write_window import WriteWindow
from execserver.protocol.batches import FsWriteEntry
from execserver.protocol.method import Method
from execserver.protocol.own_methods import FS_WRITE_PART, PORT_DATA
from execserver.protocol.process_methods import PROCESS_WRITE
from execserver_client._connection import Connection, Posted
from execserver_client._session import Session

T = TypeVar("T")

_Pieces = Iterable[bytes] | AsyncIterable[bytes]


async def write_all(session: Session, known: ProcessState, pieces: _Pieces) -> None:
    """See `Process.write_all`."""
    window = WriteWindow(_Line(session, PROCESS_WRITE), known)
    await _push_all(window.push, pieces)
    await _take(window.finish())


async def send_all(
    session: Session, log: PortLog, pieces: _Pieces, refused: Callable[[], object] | None = None
) -> None:
    """See `StreamEnd.send_all`."""
    window = PortWindow(_Line(session, PORT_DATA, refused), log)
    await _take(window.begin())
    await _push_all(window.push, pieces)
    await _take(window.finish())


async def write_parts(
    session: Session,
    path: RemotePath,
    entries: Iterable[FsWriteEntry] | AsyncIterable[FsWriteEntry],
    sandbox: Sandbox,
) -> None:
    """See `Files.write_parts`."""
    window = RequestWindow(_Line(session, FS_WRITE_PART), FS_WRITE_PART, lambda answer: None, PARTS_BYTES)
    await _push_all(lambda entry: window.push(trees.part_params(path, entry, sandbox)), entries)
    await _take(window.finish())


async def _push_all(push: Callable[[T], Steps], pieces: Iterable[T] | AsyncIterable[T]) -> None:
    if isinstance(pieces, AsyncIterable):
        async for piece in pieces:
            await _take(push(piece))
    else:
        for piece in pieces:
            await _take(push(piece))


async def _take(steps: Steps) -> None:
    answer = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration:
            return
        answer = await step()


class _Line:
    """The session of a client on asyncio."""

    def __init__(
        self, session: Session, method: Method[Any, Any], refused: Callable[[], object] | None = None
    ) -> None:
        """`refused` is called when an error comes as an answer, whether or not somebody asks for it yet."""
        self._session = session
        self._method = method
        self._refused = refused

    async def connection(self) -> Connection:
        """See `Line`."""
        return await self._session.connection(self._method.name)

    async def post(self, connection: Connection, params: object) -> Posted:
        """See `Line`."""
        posted = await connection.post(self._method.name, params)
        if self._refused is not None:
            posted.watch(self._came)
        return posted

    def _came(self, outcome: Outcome) -> None:
        if self._refused is not None and isinstance(outcome, RequestFailed):
            self._refused()

    async def outcome(self, posted: Posted) -> Outcome:
        """See `Line`.  Raises `WaitTimeout` after the session's `request_timeout`."""
        return await posted.outcome(self._session.request_timeout)

    async def send_again(self, params: Any) -> Any:
        """See `Line`."""
        return await self._session.call(self._method, params, resend=True)
