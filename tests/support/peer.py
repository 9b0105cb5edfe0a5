"""What the test peers have in common: one JSON message out, one JSON message in, replies found by id.

A peer is strict about what the server sends and says nothing of its own accord. Messages that arrive while
something else is waited for are kept in order; nothing is dropped. Every wait has a deadline and raises
`PeerTimeout`.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections import deque
from typing import Any

WAIT = 30.0
"""Seconds a peer waits for a message. Generous: the machine may be busy with other tests."""

Json = Any
Message = dict[str, Json]


class PeerTimeout(AssertionError):
    """Nothing arrived in time."""


class PeerClosed(AssertionError):
    """The server ended the connection while a message was waited for."""


class ProtocolFault(AssertionError):
    """The server sent bytes that the carrier's rules forbid."""


class RemoteError(AssertionError):
    """The server answered a call with an error object: `code`, `message` and `data` as sent."""

    def __init__(self, code: int, message: str, data: Json = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.data = data


def encode(message: Json) -> bytes:
    """Write a message as the real client does: compact, non-ASCII characters raw."""
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode()


class Peer(ABC):
    """One connection to a server, over any carrier."""

    def __init__(self) -> None:
        self.kept: deque[Message] = deque()
        self.next_id = 1

    @abstractmethod
    def send_text(self, text: str | bytes) -> None:
        """Send one message, given as its JSON text."""

    @abstractmethod
    def receive_text(self, timeout: float = WAIT) -> bytes | None:
        """Return the next message's bytes, or None when the server has ended the connection."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the connection. May be called twice."""

    def send(self, message: Json) -> None:
        """Send one message."""
        self.send_text(encode(message))

    def receive(self, timeout: float = WAIT) -> Message | None:
        """Return the next message that has not been taken yet, or None at the end of the connection."""
        if self.kept:
            return self.kept.popleft()
        return self._read(timeout)

    def _read(self, timeout: float) -> Message | None:
        text = self.receive_text(timeout)
        if text is None:
            return None
        message = json.loads(text)
        if not isinstance(message, dict):
            raise ProtocolFault(f"a message is an object, got {text[:80]!r}")
        return message

    def take(self, wanted: dict[str, Json], timeout: float = WAIT) -> Message:
        """Return the first message whose members include `wanted`; keep the others for later."""
        for index, message in enumerate(self.kept):
            if wanted.items() <= message.items():
                del self.kept[index]
                return message
        deadline = time.monotonic() + timeout
        while True:
            message_or_end = self._read(max(0.0, deadline - time.monotonic()))
            if message_or_end is None:
                raise PeerClosed(f"the connection ended before {wanted}")
            if wanted.items() <= message_or_end.items():
                return message_or_end
            self.kept.append(message_or_end)

    def call(self, method: str, params: Json = None, timeout: float = WAIT) -> Json:
        """Send a request and return its result. Raises `RemoteError` for an error reply."""
        call_id = self.next_id
        self.next_id += 1
        self.send({"id": call_id, "method": method, "params": params})
        reply = self.take({"id": call_id}, timeout)
        if "error" in reply:
            error = reply["error"]
            raise RemoteError(error["code"], error["message"], error.get("data"))
        return reply["result"]

    def notification(self, method: str, timeout: float = WAIT) -> Message:
        """Return the params of the next notification of this method."""
        params = self.take({"method": method}, timeout)["params"]
        assert isinstance(params, dict)
        return params

    def open_session(self, resume: str | None = None, client_name: str = "test") -> str:
        """Send initialize and initialized; return the session id."""
        result = self.call("initialize", {"clientName": client_name, "resumeSessionId": resume})
        self.send({"method": "initialized", "params": {}})
        session_id = result["sessionId"]
        assert isinstance(session_id, str)
        return session_id

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
