"""A client of a real server with the parts that are tested alone: HTTP requests, ports, watches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from execserver.client.greenlets.router import Router
from execserver.client.options import ExecServerClientConnectOptions
from execserver_client import watches
from execserver_client._errands import Errands
from execserver_client._flow import Gate
from execserver_client._opening import Opening
from execserver_client._session import Session
from execserver_client._websocket import WebSocketTransport
from execserver_client.http import Http
from execserver_client.ports import Ports

OPTIONS = ExecServerClientConnectOptions(
    resume_interval=0.001,
    resume_window=20.0,
    max_unread_bytes=2**20,
    max_unread_bytes_while_waiting=2**22,
)


class Client:
    """A session and its parts; nothing is left once `connect` has been left."""

    def __init__(self, url: str) -> None:
        async def open_transport(timeout: float) -> WebSocketTransport:
            return await WebSocketTransport.connect(url, OPTIONS, timeout)

        self.gate = Gate(OPTIONS.max_unread_bytes, OPTIONS.max_unread_bytes_while_waiting)
        self.errands = Errands(self.gate)
        self.router = Router(self.errands.begin)
        self.session = Session(open_transport, OPTIONS, self.gate, self.router)
        self.ports = Ports(self.session, self.gate, self.router, self.errands)
        self.http = Http(self.session, self.gate, self.router)

    def watch(self, path: Path, coalesce: float = 0.1) -> Opening[watches.FileWatch]:
        """Watch a folder."""
        return watches.watch(self.session, self.gate, self.router, self.errands, path, coalesce=coalesce)

    async def call(self, method: str, params: object = None) -> object:
        """Call any method."""
        return msgspec.json.decode(bytes(await self.session.request(method, params)))


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[Client]:
    """Connect to a server."""
    client = Client(url)
    await client.session.open()
    try:
        yield client
    finally:
        await client.session.close()
        await client.errands.close()
