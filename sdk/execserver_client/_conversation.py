"""A connection whose bytes are read when they are asked for: the time before frames begin."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final, cast

MAX_WAITING_BYTES: Final = 512 * 1024
SHUTDOWN_S: Final = 1.0  # for the peer's answer to the end of TLS


class Conversation(asyncio.Protocol):
    """Owns its transport until `take_over`.

    What nobody has read yet is bounded by `MAX_WAITING_BYTES`, above which reading stops.
    """

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._is_paused = False
        self._ended = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Keep what arrived."""
        self._received += data
        if len(self._received) > MAX_WAITING_BYTES and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        """Note the end of what the peer sends."""
        self._ended = True
        self._wake()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Note the end."""
        self._ended, self._transport = True, None
        self._error = error
        self._wake()
        if not self._gone.done():
            self._gone.set_result(None)

    def send(self, data: bytes) -> None:
        """Write bytes; there are few before frames begin, so nothing waits."""
        if self._transport is not None:
            self._transport.write(data)

    async def receive(self) -> bytes:
        """Return what has arrived, b"" at the end.  Raises OSError."""
        while not self._received:
            if self._error is not None:
                raise self._error
            if self._ended:
                return b""
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        received = bytes(self._received)
        self._received.clear()
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
        return received

    async def secure(self, context: ssl.SSLContext, host: str) -> None:
        """Put TLS around the connection.  Raises OSError."""
        plain = self._transport
        if plain is None:
            raise ConnectionError("the server ended the connection at once")
        try:
            secured = await asyncio.get_running_loop().start_tls(
                plain, self, context, server_hostname=host, ssl_shutdown_timeout=SHUTDOWN_S
            )
        except BaseException:
            plain.abort()
            self.connection_lost(None)  # which nobody else says while TLS is not there
            raise
        self._transport = secured

    def take_over(self, protocol: asyncio.BaseProtocol) -> asyncio.Transport:
        """Give the connection another protocol and return its transport.  Raises ConnectionError if it ended.

        What nobody has received is to be received first.
        """
        transport, self._transport = self._transport, None
        if transport is None or self._ended:
            if transport is not None:
                transport.abort()
            raise ConnectionError("the server ended the connection at once")
        transport.set_protocol(protocol)
        return transport

    async def close(self) -> None:
        """Close the connection without a word, unless it was taken over, and wait for that."""
        transport = self._transport
        if transport is not None:
            transport.abort()
            await self._gone

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
