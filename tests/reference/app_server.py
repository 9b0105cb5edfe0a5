"""Drives the real client's app-server, for what `codex exec` cannot be asked."""

from __future__ import annotations

import json
import select
import subprocess
from collections.abc import Sequence
from typing import Any

from tests.reference.codex_cli import Client


class AppServer:
    """The client's app-server as a child, spoken to in JSON lines."""

    def __init__(self, client: Client, prefix: Sequence[str] = ()) -> None:
        """Start it, behind a command, and shake hands, with the experimental calls allowed."""
        client.write_config()
        self.child = subprocess.Popen(
            [*prefix, str(client.binary), "app-server"],
            env=client.environment("none"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        self.buffer = b""
        info = {"name": "test", "title": "test", "version": "1"}
        self.call("initialize", {"clientInfo": info, "capabilities": {"experimentalApi": True}})
        self.send({"method": "initialized"})

    def send(self, message: dict[str, Any]) -> None:
        """Write one line."""
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any]:
        """Read one line."""
        assert self.child.stdout is not None
        while b"\n" not in self.buffer:
            assert select.select([self.child.stdout], [], [], 60)[0], "the app-server is silent"
            data = self.child.stdout.read(65_536)
            assert data, "the app-server ended"
            self.buffer += data
        line, _, self.buffer = self.buffer.partition(b"\n")
        message = json.loads(line)
        assert isinstance(message, dict)
        return message

    def call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return its result."""
        self.send({"id": method, "method": method, "params": params})
        while (message := self.receive()).get("id") != method:
            pass
        assert "result" in message, message
        result = message["result"]
        assert isinstance(result, dict)
        return result

    def wait_for(self, method: str) -> None:
        """Read until this notification."""
        while self.receive().get("method") != method:
            pass

    def close(self) -> None:
        """End the app-server."""
        self.child.kill()
        self.child.wait()
        for stream in (self.child.stdin, self.child.stdout):
            if stream is not None:
                stream.close()
