"""A session in the form that file methods need: one connection, no resuming, over another library."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from execserver.client import wire
from execserver.client.errors import TransportClosed, request_failed
from execserver.protocol.environment import EnvironmentInfo, Extensions
from execserver.protocol.process_methods import INITIALIZE, INITIALIZED
from execserver.protocol.session import InitializedNotification
from execserver_client.files import Files
from tests.support.server_process import OURS, ServerProcess


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A real server for all tests of a module."""
    server = ServerProcess(OURS)
    yield server.url
    server.stop()
    server.release()


class PlainHost:
    """Carries out calls; `made` are their methods, and `hold`, once set, keeps the answers back."""

    def __init__(self, connection: ClientConnection) -> None:
        self.environment_info: EnvironmentInfo | None = None
        self.made: list[str] = []
        self.let_through = asyncio.Event()
        self.let_through.set()
        self._connection = connection
        self._ids = count(1)
        self._pending: dict[int, asyncio.Future[Any]] = {}

    @property
    def extensions(self) -> Extensions:
        info = self.environment_info
        return Extensions() if info is None or info.execserver is None else info.execserver

    async def call(
        self, method: Any, params: Any, *, resend: bool = False, timeout: float | None = None
    ) -> Any:
        """Return the result of one call."""
        self.made.append(method.name)
        call_id, answer = next(self._ids), asyncio.get_running_loop().create_future()
        self._pending[call_id] = answer
        try:
            await self._connection.send(wire.encode_request(call_id, method.name, params).decode())
            async with asyncio.timeout(timeout):
                found = await answer
        finally:
            self._pending.pop(call_id, None)
        return wire.decode(method.result, found, method.name)

    async def read(self) -> None:
        """Hand the answers out until the connection ends."""
        async for message in self._connection:
            await self.let_through.wait()
            found = wire.decode_message(message.encode() if isinstance(message, str) else message)
            if not isinstance(found, wire.Response | wire.ErrorMessage) or not isinstance(found.id, int):
                continue
            answer = self._pending.get(found.id)
            if answer is None or answer.done():
                continue
            if isinstance(found, wire.Response):
                answer.set_result(found.result)
            else:
                answer.set_exception(request_failed(found.error.code, found.error.message))
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(TransportClosed("the connection has ended"))

    async def introduce(self) -> None:
        """Initialize."""
        params: Any = {"clientName": "test", "resumeSessionId": None}
        found = await self.call(INITIALIZE, params)
        if isinstance(found.environment_info, EnvironmentInfo):
            self.environment_info = found.environment_info
        note = wire.encode_notification(INITIALIZED.name, InitializedNotification())
        await self._connection.send(note.decode())


@asynccontextmanager
async def plain_host(url: str) -> AsyncGenerator[PlainHost, None]:
    """Connect to a server, and leave nothing behind."""
    async with connect(url, max_size=None, compression=None, close_timeout=0.05) as connection:
        host = PlainHost(connection)
        reader = asyncio.create_task(host.read())
        try:
            await host.introduce()
            yield host
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)


def on(url: str, scene: Callable[[Files, PlainHost], Awaitable[None]]) -> None:
    """Let a scene play with the files of a server."""

    async def play() -> None:
        async with plain_host(url) as host:
            await scene(Files(host), host)

    asyncio.run(play())
