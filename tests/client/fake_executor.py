"""An executor in the test's own hub: it answers what a test says, plain or reliable, over a relay.

The virtual streams are the product's (`wire.relay_stream`), the rest is as little as a test needs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from time import monotonic
from typing import Any

import gevent

from execserver.remote.http import ApiClient
from execserver.remote.registry import RegistryClient
from execserver.remote.registry_answers import Registration
from execserver.remote.rendezvous import ConnectFailed, ConnectionEnded, RendezvousSocket
from execserver.wire.noise import REJECTED, Responder, prologue
from execserver.wire.noise_keys import StaticKeys
from execserver.wire.relay_frames import Handshake, RelayFrame, Reset, Resume, decode_frame, encode_frame
from execserver.wire.relay_stream import ExecutorStream, StreamError

ENVIRONMENT = "env-1"
Answer = Callable[[Any], object]


class FakeExecutor:
    """One registered executor; `answers` maps methods to functions of the params."""

    def __init__(self, registry_url: str, *, reliable: bool) -> None:
        self.reliable = reliable
        self.rejects = False
        self.answers: dict[str, Answer] = {"echo": lambda params: params}
        self.asked: list[tuple[str, Any]] = []
        self.streams: dict[str, ExecutorStream] = {}
        self.authorizations: list[bytes] = []
        self.resets: list[str] = []
        self.sessions = 0
        self._keys = StaticKeys.generate()
        self._registry = RegistryClient(registry_url, ENVIRONMENT, list, ApiClient({}))
        self._registration: Registration = self._registry.register(self._keys.public)
        self._socket = RendezvousSocket.connect(self._registration.url, {})
        self._closed = False
        self._greenlets = [gevent.spawn(self._run), gevent.spawn(self._keep_time)]

    def register_anew(self) -> None:
        """Come back as another executor: new keys, no streams."""
        self._keys = StaticKeys.generate()
        self._registration = self._registry.register(self._keys.public)
        self.streams.clear()

    def notify(self, message: bytes) -> None:
        """Send a message on every stream."""
        for stream in self.streams.values():
            stream.send(message, monotonic())
        self._flush()

    def cut(self) -> None:
        """Lose the WebSocket; another one follows at once."""
        self._socket.close()

    def close(self) -> None:
        """End it without a word."""
        self._closed = True
        self._socket.close()
        gevent.joinall(self._greenlets, timeout=20)

    def __enter__(self) -> FakeExecutor:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._closed:
            while (data := self._socket.receive()) is not None:
                self._take(decode_frame(data))
                self._flush()
            self._each(lambda stream: stream.lost(monotonic()))
            if not self._closed and self._connect():
                self._each(lambda stream: stream.restored(monotonic()))
                self._flush()
        self._socket.close()  # which may have come while this was closed

    def _connect(self) -> bool:
        try:
            self._socket = RendezvousSocket.connect(self._registration.url, {})
        except ConnectFailed:
            gevent.sleep(0.01)
            return False
        return True

    def _keep_time(self) -> None:
        while not self._closed:
            gevent.sleep(0.01)
            self._each(lambda stream: stream.tick(monotonic()))
            self._flush()

    def _each(self, act: Callable[[ExecutorStream], None]) -> None:
        for stream_id, stream in list(self.streams.items()):
            try:
                act(stream)
            except StreamError:
                del self.streams[stream_id]

    def _take(self, frame: RelayFrame) -> None:
        if isinstance(frame.body, Handshake):
            self._accept(frame.stream_id, frame.body.payload)
            return
        if isinstance(frame.body, Reset):
            self.resets.append(f"{frame.stream_id} {frame.body.reason}")
        stream = self.streams.get(frame.stream_id)
        if stream is None:
            if isinstance(frame.body, Resume) and frame.body.next_seq:
                self._send(encode_frame(RelayFrame(frame.stream_id, Reset("noise_relay_protocol_error"))))
            return
        try:
            for message in stream.feed(frame, monotonic()):
                self._answer(stream, json.loads(message))
        except StreamError:
            self._flush()
            del self.streams[frame.stream_id]

    def _accept(self, stream_id: str, message1: bytes) -> None:
        about = prologue(ENVIRONMENT, self._registration.registration_id, stream_id)
        responder = Responder(self._keys, about)
        self.authorizations.append(responder.read_message1(message1)[1])
        if self.rejects:
            self._send(encode_frame(RelayFrame(stream_id, Handshake(responder.write_message2(REJECTED)))))
            return
        self.streams[stream_id] = ExecutorStream(stream_id, responder, announce=self.reliable)
        self.streams[stream_id].open()

    def _answer(self, stream: ExecutorStream, message: dict[str, Any]) -> None:
        method = message["method"]
        self.asked.append((method, message.get("params")))
        if "id" not in message:
            return
        result: object
        if method == "initialize":
            self.sessions += 1
            result = {"sessionId": message["params"].get("resumeSessionId") or f"session-{self.sessions}"}
        else:
            result = self.answers[method](message.get("params"))
        stream.send(json.dumps({"id": message["id"], "result": result}).encode(), monotonic())

    def _flush(self) -> None:
        for stream in list(self.streams.values()):
            while stream.is_connected and (frame := stream.next_frame(monotonic())) is not None:
                self._send(frame)

    def _send(self, frame: bytes) -> None:
        try:
            self._socket.send(frame)
        except ConnectionEnded:
            pass
