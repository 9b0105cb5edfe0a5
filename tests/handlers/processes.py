"""Starting and feeding played processes through the handlers."""

from __future__ import annotations

import base64
from typing import Any

from execserver.services.launch.spawner import SpawnSpec
from tests.handlers.asking import Client
from tests.services.fakes import FakeRun

HERE = "file:///"
FOREIGN = "file://h/x"
FOREIGN_IS = "'file://h/x' is invalid on 'linux'"


def start(client: Client, process_id: object = "p", **members: object) -> Any:
    """Start a process with the least that is needed."""
    params: dict[str, object] = {"processId": process_id, "argv": ["x"], "cwd": HERE, "env": {}, "tty": False}
    return client.ask("process/start", **(params | members))


def started(client: Client, process_id: object = "p", **members: object) -> FakeRun:
    """Start a process and return its far side."""
    assert start(client, process_id, **members) == {"processId": process_id, "sandboxType": "none"}
    return client.server.spawner.runs[-1]


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def write(client: Client, data: bytes, write_id: str | None = "1", process_id: str = "p") -> Any:
    """Write to a process; None leaves the id out."""
    params: dict[str, object] = {"processId": process_id, "chunk": b64(data)}
    return client.ask("process/write", **(params if write_id is None else params | {"writeId": write_id}))


def spec_of(client: Client, **members: object) -> SpawnSpec:
    return started(client, **members).spec


def sandbox(**members: object) -> dict[str, object]:
    """Return a sandbox context that restricts nothing."""
    return {"permissions": {"type": "disabled"}, "windowsSandboxLevel": "disabled"} | members


ACCEPTED = {"status": "accepted"}
STDIN_CLOSED = {"status": "stdinClosed"}
STARTING = {"status": "starting"}
UNKNOWN = {"status": "unknownProcess"}
WRITE_FAILED = (-32603, "failed to write to process stdin")
