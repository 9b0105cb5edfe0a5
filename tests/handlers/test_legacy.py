from __future__ import annotations

import base64
from typing import Any

import gevent
import pytest

from tests.handlers.asking import Client
from tests.services.fakes import FakeRun
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("loop_failures")


def run_command(client: Client, process_id: str = "p", **members: object) -> Any:
    params = {"processId": process_id, "argv": ["x"], "cwd": "/", "env": {}, "tty": False}
    return client.ask("command/exec", **(params | members))


def running(client: Client, process_id: str = "p", **members: object) -> FakeRun:
    """Run a command and return its far side."""
    answer = {"processId": process_id, "running": True, "exitCode": None, "stdout": None, "stderr": None}
    assert run_command(client, process_id, **members) == answer
    return client.server.spawner.runs[-1]


def write(client: Client, data: bytes, process_id: str = "p") -> Any:
    chunk = base64.b64encode(data).decode()
    return client.ask("command/exec/write", processId=process_id, chunk=chunk)


def outputs(client: Client, stream: str = "stdout") -> bytes:
    """Return what was told of a stream."""
    return b"".join(
        base64.b64decode(message["params"]["chunk"])
        for message in client.heard()
        if message["method"] == "command/exec/outputDelta" and message["params"]["stream"] == stream
    )


def test_what_is_asked_is_what_is_run(asking: Client) -> None:
    spec = running(asking, argv=["a", "b"], cwd="/tmp/x y", env={"A": "1"}, arg0="zero", tty=True).spec
    assert [bytes(word) for word in spec.argv] == [b"a", b"b"]
    assert (dict(spec.env), spec.cwd, spec.arg0) == ({b"A": b"1"}, b"/tmp/x y", b"zero")
    assert (spec.tty, spec.pipe_stdin) == (True, False)


def test_notifications_in_the_words_of_the_first_contract(asking: Client) -> None:
    run = running(asking)
    run.write("stdout", b"out")
    run.write("stderr", b"err")
    run.end(2 << 8)
    assert asking.heard() == [
        {
            "method": "command/exec/outputDelta",
            "params": {"processId": "p", "stream": "stdout", "chunk": "b3V0"},
        },
        {
            "method": "command/exec/outputDelta",
            "params": {"processId": "p", "stream": "stderr", "chunk": "ZXJy"},
        },
        {"method": "command/exec/exited", "params": {"processId": "p", "exitCode": 2}},
    ]


@pytest.mark.parametrize(("cap", "told"), [(0, b""), (4, b"abcd"), (5, b"abcde"), (100, b"abcdefg")])
def test_output_is_told_up_to_the_cap_of_each_stream(asking: Client, cap: int, told: bytes) -> None:
    run = running(asking, outputBytesCap=cap)
    for piece in (b"abc", b"def", b"g"):
        run.write("stdout", piece)
        run.write("stderr", piece)
    assert outputs(asking, "stdout") == outputs(asking, "stderr") == told
    run.end()
    assert asking.heard()[-1]["method"] == "command/exec/exited"


def test_the_cap_bounds_what_is_told_not_what_is_retained(asking: Client) -> None:
    running(asking, outputBytesCap=1).write("stdout", b"abc")
    assert asking.ask("process/read", processId="p")["chunks"][0]["chunk"] == "YWJj"


def test_checks_are_made_in_their_order(asking: Client) -> None:
    running(asking, "z")
    assert run_command(asking, "z", argv=[], cwd="file://h/x") == (-32602, "argv must not be empty")
    foreign = (-32600, "'file://h/x' is invalid on 'linux'")
    assert run_command(asking, "z", cwd="file://h/x") == foreign
    assert run_command(asking, "z", argv=[""]) == (-32600, "process z already exists")


def test_a_terminal_takes_input(asking: Client) -> None:
    run = running(asking, tty=True)
    assert write(asking, b"typed\n") == {"accepted": True}
    assert run.read("pty") == b"typed\n"


def test_input_that_cannot_be(asking: Client) -> None:
    assert write(asking, b"x", "nope") == (-32600, "unknown process id nope")
    running(asking)
    assert write(asking, b"x") == (-32600, "stdin is closed for process p")
    running(asking, "t", tty=True).end()
    process = asking.call.session.processes.known("t")
    wait_until(lambda: process.state.closed, pause=gevent.sleep)
    assert write(asking, b"x", "t") == (-32600, "stdin is closed for process t")


def test_input_that_waited_for_a_terminal_that_ends_is_refused(asking: Client) -> None:
    run = running(asking, tty=True)
    process = asking.call.session.processes.known("p")
    assert process.stdin is not None
    process.stdin._turns.append(gevent.event.Event())  # as a write that waits
    waiting = asking.ask_later("command/exec/write", processId="p", chunk="eA==")
    assert not waiting.ready()
    run.end()
    wait_until(lambda: process.state.closed, pause=gevent.sleep)
    process.stdin._leave(gevent.event.Event())
    assert waiting.get(timeout=20) == (-32600, "stdin is closed for process p")


def test_terminating(asking: Client) -> None:
    assert asking.ask("command/exec/terminate", processId="p") == {"running": False}
    run = running(asking)
    assert asking.ask("command/exec/terminate", processId="p") == {"running": True}
    assert run.signals == [9]
    run.end(9)
    assert asking.ask("command/exec/terminate", processId="p") == {"running": False}
    assert asking.heard()[-1]["params"] == {"processId": "p", "exitCode": 137}
