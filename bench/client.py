"""A blocking exec-server client that costs little: it takes frames apart itself and decodes JSON when asked.

It is the ruler of the benchmark, so it does nothing clever: one socket, one thread, no retries.  It owns its
socket until `close`.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import struct
from collections import deque
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

Json = dict[str, Any]

TIMEOUT_S = 180.0  # under valgrind, on a busy machine, an answer takes long
_RECEIVE_BYTES = 1 << 20
_MAX_HEAD_BYTES = 16 * 1024
_TEXT, _CLOSE, _PING, _PONG = 0x1, 0x8, 0x9, 0xA
_FIN, _MASKED = 0x80, 0x80


class Refused(Exception):
    """The server answered a request with an error."""


class Gone(Exception):
    """The server closed the connection, or did not speak WebSocket."""


class Client:
    """One initialized connection, with a session of its own or the one that it resumes."""

    def __init__(self, url: str, resumed: str | None = None) -> None:
        self.url = url
        parts = urlsplit(url)
        address = (str(parts.hostname), int(parts.port or 0))
        self._socket = socket.create_connection(address, TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        self._messages: deque[bytes] = deque()
        self._next_id = 0
        self._upgrade(f"{address[0]}:{address[1]}")
        more = {} if resumed is None else {"resumeSessionId": resumed}
        self.session_id: str = self.call("initialize", {"clientName": "bench", **more})["sessionId"]
        self.send({"method": "initialized"})

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection without ceremony."""
        self._socket.close()

    def leave(self) -> None:
        """End the connection, and wait until the server has ended it, too: its session is detached then."""
        self._socket.shutdown(socket.SHUT_WR)
        while self._socket.recv(_RECEIVE_BYTES):
            pass
        self._socket.close()

    def send(self, message: Json) -> None:
        """Send one message."""
        self._socket.sendall(masked_frame(_TEXT, json.dumps(message).encode()))

    def send_prepared(self, frames: bytes) -> None:
        """Send frames made with `request_frame`."""
        self._socket.sendall(frames)

    def receive(self) -> bytes:
        """Return the next whole message as it came."""
        if self._messages:
            return self._messages.popleft()
        return self._next_message()

    def call(self, method: str, params: Json) -> Any:
        """Send a request and return its result; other messages that come meanwhile are kept."""
        self._next_id += 1
        number = self._next_id
        self.send({"id": number, "method": method, "params": params})
        kept = []
        while True:
            message = json.loads(self._next_message())
            if message.get("id") == number:
                break
            kept.append(json.dumps(message).encode())
        self._messages.extend(kept)
        if "error" in message:
            raise Refused(f"{message['error']['code']}: {message['error']['message']}")
        return message["result"]

    def wait_for(self, method: str, process_id: str) -> Json:
        """Drop messages until a notification about a process comes, and return its params."""
        while True:
            message = json.loads(self.receive())
            if message.get("method") == method and message["params"]["processId"] == process_id:
                params: Json = message["params"]
                return params

    def _upgrade(self, host: str) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        head = (
            f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
        )
        self._socket.sendall(head.encode())
        while b"\r\n\r\n" not in self._buffer:
            if len(self._buffer) > _MAX_HEAD_BYTES:
                raise Gone("no end of the upgrade answer")
            self._fill()
        answer, _, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        if b" 101 " not in answer.splitlines()[0]:
            raise Gone(answer.decode(errors="replace"))
        self._buffer = bytearray(rest)

    def _fill(self) -> None:
        data = self._socket.recv(_RECEIVE_BYTES)
        if not data:
            raise Gone("the server closed the connection")
        self._buffer += data

    def _next_message(self) -> bytes:
        pieces = []
        while True:
            first, payload = self._next_frame()
            opcode = first & 0x0F
            if opcode == _PING:
                self._socket.sendall(masked_frame(_PONG, payload))
            elif opcode == _CLOSE:
                raise Gone("the server sent a Close frame")
            elif opcode != _PONG:
                pieces.append(payload)
                if first & _FIN:
                    return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _next_frame(self) -> tuple[int, bytes]:
        while len(self._buffer) < 10 and not self._has_small_frame():
            self._fill()
        length, start = self._buffer[1] & 0x7F, 2
        if length == 126:
            length, start = struct.unpack_from(">H", self._buffer, 2)[0], 4
        elif length == 127:
            length, start = struct.unpack_from(">Q", self._buffer, 2)[0], 10
        first, end = self._buffer[0], start + length
        if len(self._buffer) < end:
            return first, self._read_large(start, end)
        payload = bytes(self._buffer[start:end])
        del self._buffer[:end]
        return first, payload

    def _has_small_frame(self) -> bool:
        return len(self._buffer) >= 2 and len(self._buffer) >= 2 + (self._buffer[1] & 0x7F)

    def _read_large(self, start: int, end: int) -> bytes:
        """Read the rest of a frame right into its place: a growing buffer would measure the client."""
        payload = bytearray(end - start)
        have = len(self._buffer) - start
        payload[:have] = self._buffer[start:]
        self._buffer.clear()
        view = memoryview(payload)
        while have < len(payload):
            got = self._socket.recv_into(view[have:])
            if not got:
                raise Gone("the server closed the connection inside a frame")
            have += got
        return bytes(payload)


def request_frame(number: int, method: str, params: Json) -> bytes:
    """Return a request ready for `send_prepared`."""
    return masked_frame(_TEXT, json.dumps({"id": number, "method": method, "params": params}).encode())


def masked_frame(opcode: int, payload: bytes) -> bytes:
    """Return a frame as a client sends it.  The mask is zero, which is allowed and costs us nothing."""
    length = len(payload)
    if length < 126:
        head = struct.pack(">BB", _FIN | opcode, _MASKED | length)
    elif length < 1 << 16:
        head = struct.pack(">BBH", _FIN | opcode, _MASKED | 126, length)
    else:
        head = struct.pack(">BBQ", _FIN | opcode, _MASKED | 127, length)
    return head + bytes(4) + payload
