"""A running call with a plain shell in the supervisor's place."""

from __future__ import annotations

import _socket
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import gevent
import pytest
from gevent import socket
from gevent.event import Event

from execserver.mcp import running
from execserver.mcp.call_timer import CallTimer
from execserver.mcp.elicitation import Answer, Question
from execserver.mcp.output_capture import STDERR, STDOUT
from execserver.mcp.running import Outcome, RunningCall
from execserver.services.launch.child import Child
from execserver.services.launch.spawner import Spawner
from execserver.zygote.supervision import records
from tests.services.spawning import spawner, spec, wait_gone

MS = 1_000_000


@pytest.fixture(scope="module")
def starter() -> Iterator[Spawner]:
    with spawner() as made:
        yield made


class Scene:
    """A shell, and the supervisor's end of its question socket.

    With `begins` its time does not run before it has said something, however busy the machine is.
    """

    def __init__(self, starter: Spawner, command: bytes, limit_ms: int | None, begins: bool) -> None:
        near, far = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        self.far = socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, far.detach())
        near_socket = socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, near.detach())
        self.answered = Event()
        self.cancelled = Event()
        self.child: Child = starter.spawn(spec(b"sh", b"-c", command))
        if begins:
            assert select.select([fd for _, fd in self.child.outputs], [], [], 20)[0]
        limit_ns = None if limit_ms is None else limit_ms * MS
        self.call = RunningCall(self.child, near_socket, CallTimer(limit_ns, time.monotonic_ns()), self._ask)

    def _ask(self, question: Question) -> Answer:
        self.answered.wait()
        return Answer.ACCEPT

    def wait(self) -> Outcome:
        return self.call.wait(self.cancelled)

    def close(self) -> None:
        self.call.close()
        self.far.close()


@contextmanager
def shell(
    starter: Spawner, command: bytes, limit_ms: int | None = 10_000, begins: bool = False
) -> Iterator[Scene]:
    with closing(Scene(starter, command, limit_ms, begins)) as scene:
        yield scene


def test_output_and_exit_are_there_when_the_shell_has_ended(starter: Spawner) -> None:
    with shell(starter, b"echo out; echo err >&2; exit 3") as scene:
        assert scene.wait() is Outcome.EXITED
        assert scene.child.exit_code == 3
        assert scene.call.capture.stream(STDOUT) == b"out\n"
        assert scene.call.capture.stream(STDERR) == b"err\n"


def test_a_shell_without_limit_runs_to_its_end(starter: Spawner) -> None:
    with shell(starter, b"exit 4", None) as scene:
        assert scene.wait() is Outcome.EXITED


def test_more_output_than_is_kept_holds_nobody_up(starter: Spawner) -> None:
    with shell(starter, b"head -c 5000000 /dev/zero; echo end >&2") as scene:
        assert scene.wait() is Outcome.EXITED
        assert len(scene.call.capture.stream(STDOUT)) == 1024 * 1024
        assert scene.call.capture.stream(STDERR) == b"end\n"


def test_time_that_is_up_ends_the_group_and_keeps_the_output(starter: Spawner) -> None:
    with shell(starter, b"echo begun; sleep 60 & wait", 200, begins=True) as scene:
        assert scene.wait() is Outcome.TIMED_OUT
        assert scene.child.killed_by == signal.SIGTERM
        assert scene.call.capture.text() == "begun\n"


def test_whoever_does_not_end_on_sigterm_is_killed(starter: Spawner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_ENDING", ((signal.SIGTERM, 0.1), (signal.SIGKILL, 5.0)))
    stubborn = b"trap '' TERM; echo begun; while :; do sleep 0.01; done"
    with shell(starter, stubborn, 200, begins=True) as scene:
        assert scene.wait() is Outcome.TIMED_OUT
        assert scene.child.killed_by == signal.SIGKILL


def test_a_cancelled_call_is_ended(starter: Spawner) -> None:
    with shell(starter, b"exec sleep 60", None) as scene:
        gevent.spawn_later(0.01, scene.cancelled.set)
        assert scene.wait() is Outcome.CANCELLED
        assert scene.child.exited


def test_the_clock_stands_while_a_question_is_open(starter: Spawner) -> None:
    with shell(starter, b"exec sleep 60", 1000) as scene:
        question = records.Question(1, b"/bin/true", [b"true"], b"/")
        scene.far.sendall(records.encode_message(question))
        waiting = gevent.spawn(scene.wait)
        waiting.join(1.5)
        assert not waiting.ready()
        scene.answered.set()
        assert waiting.get(timeout=20) is Outcome.TIMED_OUT


def test_who_holds_an_output_longer_is_not_waited_for(
    starter: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "OUTPUT_GRACE_S", 0.1)
    with shell(starter, b"echo out; setsid sleep 60 & echo $!") as scene:
        assert scene.wait() is Outcome.EXITED
        text = scene.call.capture.text()
        assert text.startswith("out\n")
    pid = int(text.split()[1])
    os.kill(pid, signal.SIGKILL)
    wait_gone(pid)


def test_a_shell_that_has_ended_is_not_late_for_what_others_still_write(starter: Spawner) -> None:
    with shell(starter, b"exec sleep 60", 1000) as scene:
        scene.far.sendall(records.encode_message(records.ShellEnded()))
        waiting = gevent.spawn(scene.wait)
        waiting.join(1.5)
        assert not waiting.ready()
        scene.cancelled.set()
        assert waiting.get(timeout=20) is Outcome.CANCELLED


def test_the_supervisor_hears_that_the_outputs_are_over(starter: Spawner) -> None:
    with shell(starter, b"echo now; exec sleep 60 >&- 2>&-", None) as scene:
        waiting = gevent.spawn(scene.wait)
        scene.far.sendall(records.encode_message(records.ShellEnded()))
        assert scene.far.recv(1) == b""
        scene.child.kill_group()
        assert waiting.get(timeout=20) is Outcome.EXITED
        assert scene.call.capture.text() == "now\n"


def test_closing_ends_a_shell_that_still_runs(starter: Spawner) -> None:
    with shell(starter, b"exec sleep 60") as scene:
        pass
    assert scene.child.exited
