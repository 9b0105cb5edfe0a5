"""A TCP proxy on asyncio that breaks connections when told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class CuttingProxy:
    """Stands before a server; `cut` ends all connections without a word."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = str(parts.hostname), int(parts.port or 0)
        self._pairs: dict[asyncio.Task[None], tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = {}
        self._server: asyncio.Server | None = None
        self.is_open_for_new = True
        self.accepted = 0
        self.passed = 0  # bytes of the server

    @property
    def url(self) -> str:
        """Where clients connect to."""
        assert self._server is not None
        return f"ws://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """End every connection."""
        for pair in self._pairs.values():
            for end in pair:
                end.transport.abort()

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def stop(self) -> None:
        """End everything."""
        if self._server is not None:
            self._server.close()
        while self._pairs:
            self.cut()
            await asyncio.sleep(0.001)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        if not self.is_open_for_new:
            writer.transport.abort()
            return
        from_server, to_server = await asyncio.open_connection(*self._target)
        self._pairs[task] = writer, to_server
        up = asyncio.create_task(self._pump(reader, to_server, counted=False))
        try:
            await self._pump(from_server, writer, counted=True)
            await up
        finally:
            del self._pairs[task]

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, counted: bool) -> None:
        try:
            while data := await source.read(65536):
                self.passed += len(data) if counted else 0
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        sink.transport.abort()


@asynccontextmanager
async def before(url: str) -> AsyncIterator[CuttingProxy]:
    """A proxy before a server."""
    proxy = CuttingProxy(url)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
