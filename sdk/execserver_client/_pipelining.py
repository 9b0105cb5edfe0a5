"""Input of a process with several writes under way, for tasks; the rules are those of `write_window`."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable

from execserver.client.calls import Outcome
from execserver.client.process_state import ProcessState
from execserver.client.write_window import Steps, WriteWindow
from execserver.protocol.process import WriteParams, WriteResponse
from execserver.protocol.process_methods import PROCESS_WRITE
from execserver_client._connection import Connection, Posted
from execserver_client._session import Session


async def write_all(
    session: Session, known: ProcessState, pieces: Iterable[bytes] | AsyncIterable[bytes]
) -> None:
    """See `Process.write_all`."""
    window = WriteWindow(_Line(session), known)
    if isinstance(pieces, AsyncIterable):
        async for piece in pieces:
            await _take(window.push(piece))
    else:
        for piece in pieces:
            await _take(window.push(piece))
    await _take(window.finish())


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

    def __init__(self, session: Session) -> None:
        self._session = session

    async def connection(self) -> Connection:
        """See `Line`."""
        return await self._session.connection(PROCESS_WRITE.name)

    async def post(self, connection: Connection, params: WriteParams) -> Posted:
        """See `Line`."""
        return await connection.post(PROCESS_WRITE.name, params)

    async def outcome(self, posted: Posted) -> Outcome:
        """See `Line`.  Raises `WaitTimeout` after the session's `request_timeout`."""
        return await posted.outcome(self._session.request_timeout)

    async def send_again(self, params: WriteParams) -> WriteResponse:
        """See `Line`."""
        return await self._session.call(PROCESS_WRITE, params, resend=True)
