"""JSON-RPC over a transport of the SDK, without its session: what a test of the transport itself needs."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

from execserver_client._relay import RelayTransport

Json = dict[str, Any]


class Talk:
    """Calls one after the other; keeps the notifications that come meanwhile."""

    def __init__(self, transport: RelayTransport) -> None:
        self.transport = transport
        self._kept: list[Json] = []
        self._calls = 0

    async def call(self, method: str, params: object) -> Any:
        """Return the result of a call."""
        self._calls += 1
        await self.transport.send(
            json.dumps({"id": self._calls, "method": method, "params": params}).encode()
        )
        while True:
            message = await self._receive()
            if message.get("id") == self._calls:
                assert "error" not in message, message
                return message["result"]
            self._kept.append(message)

    async def initialize(self) -> Json:
        """Open a session."""
        found: Json = await self.call("initialize", {"clientName": "test", "resumeSessionId": None})
        await self.transport.send(b'{"method":"initialized","params":{}}')
        return found

    async def start(self, process_id: str, argv: list[str]) -> None:
        """Start a process that is told of."""
        params = {"processId": process_id, "argv": argv, "cwd": "/tmp", "env": {}, "tty": False}
        await self.call("process/start", params)

    async def output(self, process_id: str) -> bytes:
        """Return all that a process prints until it is closed."""
        pieces: list[bytes] = []
        while True:
            message = self._kept.pop(0) if self._kept else await self._receive()
            params = message.get("params", {})
            if params.get("processId") != process_id:
                continue
            if message["method"] == "process/output":
                pieces.append(b64decode(params["chunk"]))
            elif message["method"] == "process/closed":
                return b"".join(pieces)

    async def _receive(self) -> Json:
        data = await self.transport.receive()
        assert data is not None
        message: Json = json.loads(data)
        return message
