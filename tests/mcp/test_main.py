"""The server as a process: what it looks at before the client, and every way it ends."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from execserver.mcp.elicitation import MAX_OPEN
from tests.mcp.replaying import RULES, SCRIPT, Machine, Server
from tests.support.proc import marked
from tests.support.waiting import wait_until

MARK = "EXECSERVER_TEST_MARK"
Start = Callable[[str], Server]
INITIALIZE = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "t", "version": "0"},
}
FULL_ACCESS = {"sandboxPolicy": {"type": "danger-full-access"}, "sandboxCwd": "/"}


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    root = Path(tempfile.mkdtemp(dir="/var/tmp"))
    made = Machine(root)
    made.make({"default.rules": RULES})
    yield made
    shutil.rmtree(root)


@pytest.fixture
def start(machine: Machine) -> Iterator[Start]:
    """Starts servers with a mark in their environment, open and with full access."""
    made: list[Server] = []

    def make(mark: str) -> Server:
        made.append(Server(machine, variables={MARK: mark}))
        return opened(made[-1])

    yield make
    for server in made:
        if server.process.returncode is None:
            server.close()


def opened(server: Server) -> Server:
    peer = server.peer
    peer.send({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE})
    peer.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
    peer.send({"jsonrpc": "2.0", "method": "codex/sandbox-state/update", "params": FULL_ACCESS})
    first = peer.receive()
    assert first is not None
    assert first["id"] == 1
    return server


def call(server: Server, number: int, command: str) -> None:
    arguments = {"command": command, "workdir": "/", "login": False, "timeout_ms": 60_000}
    params = {"name": "shell", "arguments": arguments}
    server.peer.send({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})


def run(*argv: str, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(SCRIPT), "mcp", *argv]
    env = {"PATH": os.environ["PATH"], "HOME": "/proc/self", **environ}  # where nothing can be made
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=30, env=env, check=False
    )


def test_wrong_usage_ends_with_2_before_anything_else() -> None:
    done = run("--bogus", CODEX_HOME="/none")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: unexpected argument '--bogus' found")


def test_a_home_that_does_not_exist_ends_with_1(tmp_path: Path) -> None:
    home = str(tmp_path / "none")
    done = run(CODEX_HOME=home)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: failed to resolve codex_home for execpolicy\n")
    assert f'CODEX_HOME points to "{home}", but that path does not exist' in done.stderr


def test_a_broken_rules_file_ends_with_1_and_names_the_place(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    file = tmp_path / "rules" / "x.rules"
    file.write_text('prefix_rule(["a"], decision="deny")\n')
    done = run(CODEX_HOME=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"Error: failed to parse rules file {file}: starlark error: ")
    assert "invalid decision: deny" in done.stderr


def test_who_starts_it_by_hand_is_told_what_it_is() -> None:
    near, far = os.openpty()
    try:
        command = [sys.executable, "-I", str(SCRIPT), "mcp"]
        with subprocess.Popen(command, stdin=far, stdout=subprocess.PIPE, stderr=far) as server:
            shown = b""
            while b"tells more." not in shown:
                shown += os.read(near, 1000)
            os.write(near, b"\4")  # Ctrl-D
            assert server.communicate(timeout=30)[0] == b""
    finally:
        os.close(near)
        os.close(far)
    assert b"a server for an MCP client" in shown
    assert server.returncode == 1


def test_an_input_that_ends_before_the_greeting_ends_with_1() -> None:
    done = run()
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "Error: connection closed: initialized request\n"


RUNNING = "setsid sh -c 'sleep 60; :' & setsid env sleep 60 & (sleep 60); :"


@pytest.mark.parametrize("ending", ["input", "output", signal.SIGINT, signal.SIGHUP])
def test_with_the_server_everything_ends(start: Start, ending: str | signal.Signals) -> None:
    mark = f"ends-{ending}"
    server = start(mark)
    call(server, 2, RUNNING)
    # The server (its zygote is without the mark), the supervisor, the shell, and three times a sleep.
    wait_until(lambda: len(marked(f"{MARK}={mark}")) >= 5)
    if isinstance(ending, signal.Signals):
        server.process.send_signal(ending)
        assert server.process.wait(timeout=20) == 0
    elif ending == "output":
        assert server.peer.output_fd is not None
        os.close(server.peer.output_fd)
        server.peer.output_fd = None
        server.peer.send({"jsonrpc": "2.0", "id": 3, "method": "ping"})
        assert server.process.wait(timeout=20) == 0
    assert server.close() == (0, "")
    assert marked(f"{MARK}={mark}") == []


def test_a_client_that_reads_nothing_does_not_hold_up_the_end(start: Start) -> None:
    server = start("unread")
    call(server, 10, "head -c 400000 /dev/zero | tr '\\0' x")
    call(server, 11, RUNNING)
    for number in range(1_500):
        server.peer.send({"jsonrpc": "2.0", "id": number + 100, "method": "tools/list"})
    server.peer.close_input()
    assert server.process.wait(timeout=20) == 0
    assert marked(f"{MARK}=unread") == []
    server.close()


def test_a_cancelled_call_ends_at_once_with_all_it_started(start: Start) -> None:
    server = start("cancelled")
    call(server, 2, RUNNING)
    wait_until(lambda: len(marked(f"{MARK}=cancelled")) >= 5)
    params = {"requestId": 2, "reason": "enough"}
    server.peer.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
    wait_until(lambda: set(marked(f"{MARK}=cancelled")) <= {server.process.pid})
    server.peer.send({"jsonrpc": "2.0", "id": 3, "method": "ping"})
    assert server.peer.receive() == {"jsonrpc": "2.0", "id": 3, "result": {}}
    assert server.close() == (0, "")


def test_open_questions_are_taken_back_when_their_call_is_cancelled(start: Start) -> None:
    server = start("asked")
    call(server, 2, f"for i in {{1..{MAX_OPEN + 6}}}; do /bin/true $i & done; wait")
    asked = [server.peer.receive() for _ in range(MAX_OPEN)]
    assert [message["id"] for message in asked if message] == list(range(MAX_OPEN))
    server.peer.send({"jsonrpc": "2.0", "id": 0, "result": {"action": "decline"}})
    more = server.peer.receive()
    assert more is not None
    assert more["id"] == MAX_OPEN
    server.peer.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}})
    withdrawn = [server.peer.receive() for _ in range(MAX_OPEN)]
    assert sorted(message["params"]["requestId"] for message in withdrawn if message) == [
        *range(1, MAX_OPEN + 1)
    ]
    wait_until(lambda: set(marked(f"{MARK}=asked")) <= {server.process.pid})
    server.peer.send({"jsonrpc": "2.0", "id": 3, "method": "ping"})
    assert server.peer.receive() == {"jsonrpc": "2.0", "id": 3, "result": {}}
    assert server.close() == (0, "")


def test_a_hundred_calls_at_once_are_all_answered(start: Start) -> None:
    server = start("hundred")
    for number in range(100):
        call(server, number + 10, f"echo {number}")
    answers = [server.peer.receive() for _ in range(100)]
    found = {answer["id"]: answer["result"]["content"][0]["text"] for answer in answers if answer}
    assert set(found) == set(range(10, 110))
    assert all(f'"output":"{number - 10}\\n"' in text for number, text in found.items())
    assert server.close() == (0, "")


def test_rubbish_does_no_harm(start: Start) -> None:
    server = start("rubbish")
    chosen = random.Random(11)
    for _ in range(200):
        server.peer.send_raw(b"\xfe" + chosen.randbytes(chosen.randrange(500)).replace(b"\n", b"") + b"\n")
    server.peer.send_raw(b"[" * 1_000_000 + b"\n" + b'{"a":' * 200_000 + b"\n\n\n")
    server.peer.send_raw(b"x" * (17 * 1024 * 1024) + b"\n")
    codes = [answer["error"]["code"] for answer in (server.peer.receive() for _ in range(203)) if answer]
    assert codes == [-32700] * 202 + [-32600]
    server.peer.send({"jsonrpc": "2.0", "id": 3, "method": "ping"})
    assert server.peer.receive() == {"jsonrpc": "2.0", "id": 3, "result": {}}
    assert server.close() == (0, "")
