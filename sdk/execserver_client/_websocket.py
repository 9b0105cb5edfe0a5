"""A connection over `ws://`, `wss://` or `unix://`: one text message of the WebSocket is one message.

Received messages that nobody has taken are bounded by `Inbox`.  Frames that the socket does not take are
bounded by those of one message and the link's own limit.
"""

from __future__ import annotations

import asyncio

from execserver.client.carriers.credentials import headers_for
from execserver.client.carriers.upgrade import Upgrade
from execserver.client.carriers.urls import Address, parse_url
from execserver.client.errors import (
    ConnectFailed,
    ConnectTimeout,
    ExecServerError,
    ProtocolViolation,
    TransportClosed,
)
from execserver.client.options import ExecServerClientConnectOptions
from execserver.wire.client_frames import message_frames
from execserver_client._conversation import Conversation
from execserver_client._inbox import Inbox
from execserver_client._sockets import open_conversation
from execserver_client._websocket_link import Kind, WebSocketLink


class WebSocketTransport:
    """One WebSocket after its upgrade; owns its link."""

    carries_binary = True

    def __init__(self, options: ExecServerClientConnectOptions) -> None:
        """Make the transport; `connect` gives it its connection."""
        kind = Kind(options.max_message_bytes, options.max_frame_bytes, is_text=True, peer="the server")
        self._link = WebSocketLink(kind, self)
        self._fragment_bytes = options.send_fragment_bytes
        self._inbox = Inbox(self._link.pause_reading, self._link.resume_reading)
        self._end: ExecServerError | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._sending = asyncio.Lock()

    @classmethod
    async def connect(
        cls, url: str, options: ExecServerClientConnectOptions, timeout: float
    ) -> WebSocketTransport:
        """Connect and upgrade within `timeout` seconds.

        Raises `InvalidUrl`, `ConnectFailed` or, when time is up, `ConnectTimeout`.
        """
        address = parse_url(url)
        upgrade = Upgrade(address, headers_for(address, options))
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                return await cls._connected(address, upgrade, options)
        except OSError as error:  # TimeoutError is one
            if limit.expired():
                raise ConnectTimeout(f"{url} did not answer within {timeout:g} s") from None
            raise ConnectFailed(f"cannot connect to {url}: {error}") from error

    @classmethod
    async def _connected(
        cls, address: Address, upgrade: Upgrade, options: ExecServerClientConnectOptions
    ) -> WebSocketTransport:
        conversation = await open_conversation(address, options)
        try:
            early = await _upgraded(conversation, upgrade)
            made = cls(options)
            made._link.attach(conversation.take_over(made._link))
            made._link.take(early)
            return made
        finally:
            await conversation.close()  # unless it was taken over

    async def receive(self) -> bytes | None:
        """Return the next message, or None at the end of the connection (see `Transport`)."""
        return await self._inbox.get()

    async def send(self, message: bytes) -> None:
        """Send one message, in fragments when it is large.  Raises `TransportClosed`."""
        async with self._sending:
            await self._room.wait()
            if self._end is not None:
                raise TransportClosed(str(self._end))
            self._link.write(message_frames(message, self._fragment_bytes))
            if not self._link.can_write:
                self._room.clear()

    async def close(self) -> None:
        """Send a Close frame, close the socket, and wait for that: a second at most."""
        self._finish(TransportClosed("the connection is closed"))
        self._inbox.let_go()
        self._link.close()
        try:
            await asyncio.shield(self._link.gone)
        except asyncio.CancelledError:
            self._link.abort()
            raise

    def on_message(self, message: bytes) -> None:
        """Keep a message of the link until it is received."""
        self._inbox.put(message)

    def on_read(self) -> None:
        """Wake the receiver."""
        self._inbox.settle()

    def on_room(self) -> None:
        """Let the next message be sent."""
        self._room.set()

    def on_end(self, reason: str) -> None:
        """Note that the connection is over; what has arrived can still be received."""
        self._finish(ProtocolViolation(reason) if self._link.broke_rules else TransportClosed(reason))

    def _finish(self, end: ExecServerError) -> None:
        if self._end is None:
            self._end = end
        self._room.set()
        self._inbox.end(end)


async def _upgraded(conversation: Conversation, upgrade: Upgrade) -> bytes:
    """Upgrade a connection; return what came behind the answer.  Raises ConnectFailed, OSError."""
    conversation.send(upgrade.request)
    try:
        while (early := upgrade.feed(await conversation.receive())) is None:
            pass
    finally:
        upgrade.let_go()
    return early
