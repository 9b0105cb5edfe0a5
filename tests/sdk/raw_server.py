"""The server's end of a WebSocket, byte by byte, on asyncio: for what no well-behaved server sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from execserver.wire.accepting import accept_value


class Raw:
    """One connection of a client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def accept(self, early: bytes = b"") -> bytes:
        """Answer the upgrade, with some bytes right behind it; return the request."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        key = next(line[19:] for line in head.split(b"\r\n") if line.startswith(b"Sec-WebSocket-Key: "))
        self.writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Accept: " + accept_value(key.decode()).encode() + b"\r\n\r\n" + early
        )
        return head

    async def frame(self) -> tuple[int, bytes]:
        """Return first byte and unmasked payload of the next frame."""
        first, second = await self.reader.readexactly(2)
        assert second & 0x80, "a client's frames are masked"
        length = second & 0x7F
        if length >= 126:
            length = int.from_bytes(await self.reader.readexactly(2 if length == 126 else 8), "big")
        mask = await self.reader.readexactly(4)
        payload = bytearray(await self.reader.readexactly(length))
        for index in range(4):
            table = bytes(byte ^ mask[index] for byte in range(256))
            payload[index::4] = payload[index::4].translate(table)
        return first, bytes(payload)

    def send(self, payload: bytes, lead: int = 0x81) -> None:
        """Send one frame."""
        length = len(payload)
        head = bytes((lead, length)) if length < 126 else bytes((lead, 127)) + length.to_bytes(8, "big")
        self.writer.write(head + payload)

    async def wait_for_end(self) -> None:
        """Read until the client has closed."""
        try:
            while await self.reader.read(65536):
                pass
        except OSError:
            pass


@asynccontextmanager
async def raw(play: Callable[[Raw], Awaitable[None]]) -> AsyncIterator[str]:
    """Serve connections with `play`; yield the URL.  An assertion that fails in `play` fails the test."""
    errors: list[BaseException] = []
    playing: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        playing.add(task)
        try:
            await play(Raw(reader, writer))
        except AssertionError as error:
            errors.append(error)
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        finally:
            playing.discard(task)
            writer.transport.abort()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(playing):
            task.cancel()
        while playing:
            await asyncio.sleep(0)
    assert errors == []
