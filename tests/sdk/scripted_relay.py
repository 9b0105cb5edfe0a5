"""A relay and an executor in the test's own event loop, which do what a test says: also what none should.

The executor's virtual streams are the product's (`wire.relay_stream`); the rest is as little as a test needs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, NamedTuple, Self

from websockets.exceptions import InvalidState
from websockets.frames import Frame, Opcode
from websockets.server import ServerProtocol

from execserver.client.options import ExecServerClientConnectOptions, RemoteExecServerConnectArgs
from execserver.wire.noise import Responder, prologue
from execserver.wire.noise_keys import SECURITY_PROFILE, StaticKeys
from execserver.wire.relay_frames import Handshake, Reset, Resume, decode_frame
from execserver.wire.relay_stream import ExecutorStream, StreamError

ENVIRONMENT = "env-1"
KEYS, OTHER_KEYS = StaticKeys.generate(), StaticKeys.generate()


class Reply(NamedTuple):
    """What the registry answers; a body that is no bytes is sent as JSON."""

    status: int
    body: object


class Rendezvous:
    """The relay's end of one WebSocket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        self._reader, self._writer = reader, writer
        self._protocol = ServerProtocol(max_size=1 << 20)
        self._messages: list[bytes] = []
        self._protocol.receive_data(head)
        (request,) = self._protocol.events_received()
        self._protocol.send_response(self._protocol.accept(request))  # type: ignore[arg-type]
        self._flush()

    async def receive(self) -> bytes | None:
        """Return the next message, None at the end."""
        while not self._messages:
            try:
                data = await self._reader.read(1 << 16)
            except OSError:
                data = b""
            if not data:
                return None
            self._protocol.receive_data(data)
            for event in self._protocol.events_received():
                if isinstance(event, Frame) and event.opcode is Opcode.BINARY:
                    self._messages.append(bytes(event.data))
            self._flush()
        return self._messages.pop(0)

    async def send(self, message: bytes) -> None:
        """Send a binary message; waits while the client does not read."""
        self._protocol.send_binary(message)
        self._flush()
        await self._writer.drain()

    def send_text(self, message: str) -> None:
        """Send a message that no frame of a relay is in."""
        self._protocol.send_text(message.encode())
        self._flush()

    def drop(self) -> None:
        """End the connection without a word."""
        self._writer.transport.abort()

    def _flush(self) -> None:
        self._writer.write(b"".join(self._protocol.data_to_send()))


class Executor:
    """Answers `initialize`, and every other call with its params; one stream after the other or at once."""

    def __init__(self, keys: StaticKeys = KEYS, *, reliable: bool = True) -> None:
        self.asked: list[str] = []
        self.resets: list[tuple[str, str]] = []
        self.streams: dict[str, ExecutorStream] = {}
        self.registration_id = "reg-1"
        self._keys, self._reliable = keys, reliable

    async def serve(self, rendezvous: Rendezvous) -> None:
        """Serve a harness's WebSocket to its end."""
        for stream in self.streams.values():
            stream.restored(monotonic())
        while (data := await rendezvous.receive()) is not None:
            await self.take(rendezvous, data)
        for stream_id, stream in [*self.streams.items()]:
            try:
                stream.lost(monotonic())
            except StreamError:
                del self.streams[stream_id]

    async def take(self, rendezvous: Rendezvous, data: bytes) -> None:
        """Take one message and send what there is to send."""
        frame = decode_frame(data)
        stream = self.streams.get(frame.stream_id)
        if isinstance(frame.body, Reset):
            self.resets.append((frame.stream_id, frame.body.reason))
        elif isinstance(frame.body, Handshake):
            self._accept(frame.stream_id, frame.body.payload)
        elif stream is None and isinstance(frame.body, Resume):
            return
        if stream is not None:
            try:
                for message in stream.feed(frame, monotonic()):
                    self._answer(stream, json.loads(message))
            except StreamError:
                del self.streams[frame.stream_id]
        await self.flush(rendezvous)

    async def flush(self, rendezvous: Rendezvous) -> None:
        """Send what the streams have to send now."""
        for stream in [*self.streams.values()]:
            while stream.is_connected and (out := stream.next_frame(monotonic())) is not None:
                await rendezvous.send(out)

    def _accept(self, stream_id: str, message: bytes) -> None:
        responder = Responder(self._keys, prologue(ENVIRONMENT, self.registration_id, stream_id))
        responder.read_message1(message)
        self.streams[stream_id] = ExecutorStream(stream_id, responder, announce=self._reliable)
        self.streams[stream_id].open()

    def _answer(self, stream: ExecutorStream, message: dict[str, Any]) -> None:
        self.asked.append(message["method"])
        if "id" not in message:
            return
        result = {"sessionId": "s"} if message["method"] == "initialize" else message.get("params")
        stream.send(json.dumps({"id": message["id"], "result": result}).encode(), monotonic())


class ScriptedRelay:
    """Serves the registry and the rendezvous; `play` gets each WebSocket, `reply` each call.

    `upgrades` holds the statuses of the next upgrades; without any it is 101.  With `is_silent` nothing is
    answered at all.
    """

    def __init__(self, play: Callable[[Rendezvous], Awaitable[None]] | None = None) -> None:
        self.executor = Executor()
        self.play = play or self.executor.serve
        self.reply: Callable[[dict[str, Any]], Reply] = lambda good: Reply(200, good)
        self.key = KEYS.public.to_json()
        self.upgrades: list[int] = []
        self.is_silent = False
        self.calls = 0
        self.rendezvous: list[Rendezvous] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def args(self, **options: Any) -> RemoteExecServerConnectArgs:
        """Return what a client connects with."""
        given = ExecServerClientConnectOptions(**{"connect_timeout": 5.0} | options)
        return RemoteExecServerConnectArgs(
            url=self.url, environment_id=ENVIRONMENT, token="token", options=given
        )

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if self.is_silent:
                await asyncio.Event().wait()
            elif b"upgrade: websocket" in head.lower():
                await self._upgrade(reader, writer, head)
            else:
                await self._answer(reader, writer, head)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError, InvalidState):
            pass  # the client has gone or is about to, or the test is over
        finally:
            writer.transport.abort()

    async def _upgrade(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        status = self.upgrades.pop(0) if self.upgrades else 101
        if status != 101:
            writer.write(b"HTTP/1.1 %d No\r\ncontent-length: 0\r\n\r\n" % status)
            await writer.drain()
            return
        rendezvous = Rendezvous(reader, writer, head)
        self.rendezvous.append(rendezvous)
        await self.play(rendezvous)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        self.calls += 1
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        await reader.readexactly(length)
        reply = self.reply(
            {
                "environment_id": ENVIRONMENT,
                "url": self.url.replace("http", "ws") + f"/harness?n={self.calls}",
                "security_profile": SECURITY_PROFILE,
                "executor_registration_id": "reg-1",
                "executor_public_key": self.key,
                "harness_key_authorization": "let-me-in",
            }
        )
        body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (reply.status, len(body), body))
        await writer.drain()
