"""The end of a server and of many calls: nothing is left, neither processes nor descriptors."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest

from tests.conftest import LONG
from tests.mcp.calling import Calls, allow, starter
from tests.mcp.replaying import Machine, Server
from tests.support.proc import (
    command_line,
    descendants_of,
    descriptor_count,
    is_kept_ready,
    marked,
    zygotes_of,
)
from tests.support.waiting import wait_until

COMMAND = "sleep 81 & setsid sleep 82 & setsid sh -c 'trap \"\" TERM HUP; sleep 83; true' & sleep 84; true"
RULES = 'prefix_rule(["sleep", ["82", "84"]])\n'
CALLS = 400 if LONG else 100
SIDE_BY_SIDE = 8


class RunningServer:
    """A server one of whose calls has processes of every kind.  `mark` is in the environment of all."""

    def __init__(self, root: Path) -> None:
        machine = Machine(root)
        machine.make({"default.rules": RULES})
        self.mark = f"EXECSERVER_TEST_MARK={uuid.uuid4().hex}"
        name, _, value = self.mark.partition("=")
        self.server = Server(machine, variables={name: value})
        self.pid = self.server.process.pid
        self.all: list[int] = []
        self._arguments = {"command": COMMAND, "workdir": str(root), "timeout_ms": 60_000, "login": False}

    def start_call(self) -> None:
        """Start the call and wait until all of it runs."""
        client: dict[str, object] = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "t"},
        }
        self.ask(1, "initialize", client)
        self.server.peer.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        self.send(9, "tools/call", {"name": "shell", "arguments": self._arguments})
        wait_until(lambda: {b"81", b"82", b"83", b"84"} <= set(self.sleeping()), 30)
        self.all = descendants_of(self.pid)

    def send(self, number: int, method: str, params: dict[str, object]) -> None:
        """Send a request."""
        self.server.peer.send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})

    def ask(self, number: int, method: str, params: dict[str, object]) -> dict[str, Any]:
        """Send a request and return the answer to it."""
        self.send(number, method, params)
        return self.server.peer.take({"id": number})

    def sleeping(self) -> list[bytes]:
        """Return the argument of each `sleep` of the call."""
        lines = [command_line(pid).split(b"\0") for pid in marked(self.mark)]
        return [words[1] for words in lines if words[0] == b"sleep" and len(words) > 1]

    def nothing_is_left(self) -> bool:
        """Tell whether all that the server started has ended."""
        return not marked(self.mark) and not any(os.path.exists(f"/proc/{pid}/exe") for pid in self.all)


@pytest.fixture
def running() -> Iterator[RunningServer]:
    root = Path(tempfile.mkdtemp(dir="/var/tmp"))
    made = RunningServer(root)
    try:
        made.start_call()
        yield made
    finally:
        made.server.close()
        shutil.rmtree(root)


def end_input(running: RunningServer) -> None:
    running.server.peer.close_input()


def terminate(running: RunningServer) -> None:
    os.kill(running.pid, signal.SIGTERM)


def kill_server(running: RunningServer) -> None:
    os.kill(running.pid, signal.SIGKILL)


@pytest.mark.parametrize("end", [end_input, terminate, kill_server])
def test_nothing_is_left_of_a_server_that_ends(
    running: RunningServer, end: Callable[[RunningServer], None]
) -> None:
    end(running)
    running.server.process.wait(20)
    wait_until(running.nothing_is_left)


def test_a_killed_zygote_ends_its_calls_and_not_the_server(running: RunningServer) -> None:
    (zygote,) = zygotes_of(running.pid)
    os.kill(zygote, signal.SIGKILL)
    answer = running.server.peer.take({"id": 9})
    assert answer["error"]["message"] == "sandbox error: command was killed by a signal"
    wait_until(lambda: not marked(running.mark) or marked(running.mark) == [running.pid])
    assert running.ask(10, "ping", {})["result"] == {}


def await_spare(zygote: int) -> None:
    """Wait until a zygote has what waits for the next call, and nothing else."""

    def is_so() -> bool:
        below = descendants_of(zygote)
        return bool(below) and all(map(is_kept_ready, below))

    wait_until(is_so, pause=gevent.sleep)


@pytest.mark.timeout(900 if LONG else 180)
def test_many_calls_leave_nothing_behind() -> None:
    with starter() as spawner:
        calls = Calls(spawner, Path("/"))  # every sandbox has it, and temporary folders in /dev are in none

        def run(number: int) -> None:
            policy = {"type": "danger-full-access" if number % 4 else "read-only"}
            result = calls.run("/bin/true; echo $?; sleep 85 &", allow("true"), policy=policy)
            assert (result.exit_code, result.output) == (0, "0\n")

        run(0)
        (zygote,) = zygotes_of(os.getpid())
        await_spare(zygote)
        before = [descriptor_count(os.getpid()), descriptor_count(zygote)]
        waiting = list(range(CALLS))

        def work() -> None:
            while waiting:
                run(waiting.pop())

        gevent.joinall([gevent.spawn(work) for _ in range(SIDE_BY_SIDE)], raise_error=True)
        calls.wait_until_nothing_is_left()
        await_spare(zygote)
        assert [descriptor_count(os.getpid()), descriptor_count(zygote)] == before
