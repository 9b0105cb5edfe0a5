"""A client that listens and processes that a test plays: real pipes and terminals, no program behind them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import cast

from gevent.event import Event
from gevent.select import select

from execserver.protocol.errors import RpcError
from execserver.services.confinement.current_plan import SandboxNotMade
from execserver.services.launch.child import Child, Streams
from execserver.services.launch.spawner import Spawner, SpawnSpec
from tests.support.greenlets import turns


class FakeSink:
    """A `MessageSink` that keeps its messages; `has_room` and `closed` are the test's to set."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.closed = False
        self.waits = 0
        self.held = False
        self.takes_at_once = True
        self.lags = False  # the client has not read much of what it received
        self._room = Event()
        self._room.set()
        self.on_send: Callable[[], None] = lambda: None

    @property
    def has_room(self) -> bool:
        return self._room.is_set()

    def fill(self) -> None:
        """Be full from now on."""
        self._room.clear()

    def read(self) -> None:
        """Have room again."""
        self._room.set()
        turns()

    def close(self) -> None:
        """Be gone."""
        self.closed = True
        self._room.set()

    def send(self, message: bytes) -> None:
        self.send_parts(message)

    def send_parts(self, *parts: bytes) -> None:
        if not self.closed:
            self.messages.append(b"".join(parts))
            self.on_send()

    def try_send(self, message: bytes) -> bool:
        if self.closed or not self.takes_at_once:
            return False
        self.send(message)
        return True

    carries_binary = False
    send_binary = send_parts

    @property
    def may_go_on(self) -> bool:
        return self.has_room and not (self.lags or self.closed)

    def hold(self) -> None:
        assert not self.held, "held twice"
        self.held = True

    def release(self) -> None:
        assert self.held, "released without a hold"
        self.held = False

    def wait_for_room(self) -> bool:
        self.waits += 1
        self._room.wait()
        return not self.closed


class FakeRun:
    """The far side of one process that does not exist: what it writes, reads, and how it ends."""

    def __init__(self, child: Child, streams: Streams, spec: SpawnSpec) -> None:
        self.child = child
        self.spec = spec
        self.signals: list[int] = []
        self._ends: dict[str, int] = {}
        if child.tty:
            self._ends["pty"] = os.open(streams.slave, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        else:
            names = ["stdin"] * spec.pipe_stdin + ["stdout", "stderr"]
            self._ends = dict(zip(names, streams.child_ends, strict=True))

    def write(self, stream: str, data: bytes) -> None:
        """Write to an output and let it be read."""
        assert os.write(self._ends[stream], data) == len(data)
        turns()

    def read(self, stream: str = "stdin") -> bytes:
        """Wait for input and return what has arrived; nothing at its end.

        What fills the input are greenlets and threads of this process, so the loop goes on meanwhile.
        """
        end = self._ends[stream]
        assert select([end], [], [], 10.0)[0], "nothing came"
        return os.read(end, 1 << 20)

    def close(self, *streams: str) -> None:
        """Close some of the descriptors, or all."""
        for stream in streams or list(self._ends):
            os.close(self._ends.pop(stream))
        turns()

    def exit(self, status: int = 0) -> None:
        """Exit with a raw wait status; outputs stay open, as if a grandchild had them."""
        self.child.set_exited(status, survivors=bool(self._ends))
        turns()

    def end(self, status: int = 0) -> None:
        """Close everything and exit."""
        self.close()
        self.exit(status)


class FakeSpawner:
    """A `Spawner` that starts nothing, and a zygote that notes whom to signal."""

    pid = 4242

    def __init__(self) -> None:
        self.runs: list[FakeRun] = []
        self.failure: RpcError | SandboxNotMade | None = None
        self.signal_failure: OSError | None = None
        self.answers = Event()  # a start waits for this
        self.answers.set()

    def as_spawner(self) -> Spawner:
        """Return this in place of a real one."""
        return cast(Spawner, self)

    def spawn(self, spec: SpawnSpec) -> Child:
        self.answers.wait()
        if self.failure is not None:
            raise self.failure
        streams = Streams.terminal(spec.size) if spec.tty else Streams.pipes(spec.pipe_stdin)
        child = Child(len(self.runs), spec.tty, streams, self)
        child.pid = 4_000_000 + child.child_id  # above what the kernel gives out
        self.runs.append(FakeRun(child, streams, spec))
        return child

    def signal_child(self, child: Child, signum: int) -> bool:
        self.runs[child.child_id].signals.append(signum)
        if self.signal_failure is not None:
            raise self.signal_failure
        return True

    def end(self) -> None:
        """End everything that still runs."""
        for run in self.runs:
            run.close()
            if not run.child.exited:
                run.exit()
        turns()
