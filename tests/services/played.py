"""One process whose far side a test plays, and the client that hears of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import gevent

from execserver.core.process_state import ProcessState, SandboxNote
from execserver.protocol.templates import ProcessTemplates
from execserver.services.clients.attachment import Attachment
from execserver.services.launch.spawner import Spawner, SpawnSpec
from execserver.services.running.process import Process
from tests.services.fakes import FakeRun, FakeSink, FakeSpawner
from tests.support.waiting import wait_until

RETAINED_BYTES = 1024 * 1024


class Played:
    """A process with a client attached; `run` is its far side, where it is a played one."""

    def __init__(
        self, starter: FakeSpawner | Spawner, what: SpawnSpec, sandbox: SandboxNote | None = None
    ) -> None:
        child = starter.spawn(what)
        self.run = starter.runs[-1] if isinstance(starter, FakeSpawner) else None
        self.attachment = Attachment()
        self.sink = FakeSink()
        self.attachment.sink = self.sink
        self.closed = 0
        state = ProcessState(tty=what.tty, retained_bytes=RETAINED_BYTES, sandbox=sandbox)
        state.started()
        self.process = Process(
            ProcessTemplates("p"), ["argv"], state, child, self.attachment, self._on_closed
        )

    def _on_closed(self) -> None:
        self.closed += 1

    @property
    def far(self) -> FakeRun:
        assert self.run is not None
        return self.run

    def events(self) -> list[tuple[Any, ...]]:
        """Return what the client heard: (seq, what, more)."""
        return [_event(json.loads(message)) for message in self.sink.messages]

    def wait_until_closed(self) -> None:
        wait_until(lambda: self.closed, pause=gevent.sleep)


def _event(message: Any) -> tuple[Any, ...]:
    params = message["params"]
    kind = message["method"].removeprefix("process/")
    if kind == "output":
        return (params["seq"], params["stream"], params["chunk"])
    return (params["seq"], kind, params["exitCode"]) if kind == "exited" else (params["seq"], kind)


Play = Callable[..., Played]
