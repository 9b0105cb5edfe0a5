"""The keeper of a server: what it does with signals, kills that do not end, and its own end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import proc
from tests.support.crashes import Follower, crash, server_of, servers_of, surviving
from tests.support.peer import RemoteError
from tests.support.server_process import OURS, Flavour, ServerProcess, base_environment
from tests.support.upgrades import refused
from tests.support.waiting import wait_until

TOLD = "the next server was told to end before it served; everything is ended now\n"
POLITE = "trap 'echo > {}; exit' TERM; while :; do sleep 0.02; done"


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with surviving() as running:
        yield running


def all_below(server: ServerProcess) -> list[int]:
    return proc.descendants_of(server.pid)


def test_a_server_that_is_killed_too_often_ends_with_everything() -> None:
    with surviving(settings={"crash_restarts": 2}) as server, server.connect() as peer:
        peer.open_session()
        peer.call(
            "process/start",
            {
                "processId": "p",
                "argv": ["sh", "-c", "setsid sleep 1000 & sleep 1000"],
                "cwd": "/",
                "env": {"PATH": "/usr/bin:/bin"},
                "tty": False,
            },
        )
        before = 0
        for _ in range(2):
            server_of(server.pid, before)
            before = crash(server)
        last = server_of(server.pid, before)
        below = all_below(server)
        assert len(below) >= 4
        os.kill(last, signal.SIGKILL)
        assert server.wait() == 1
        wait_until(lambda: all(map(proc.is_over, below)), 20)
        expected = "Error: the server ended 3 times in 60 s, at last by signal 9; everything is ended now\n"
        assert server.errors().endswith(expected)


@pytest.mark.parametrize("whom", ["keeper", "server"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_ends_servers_ends_everything(
    server: ServerProcess, tmp_path: Path, whom: str, number: signal.Signals
) -> None:
    mark = tmp_path / "ended"
    with Follower(server) as client:
        client.start("p", POLITE.format(mark))
        crash(server)
        client.read("p")
        below = all_below(server)
        if whom == "keeper":
            server.signal(number)
        else:
            os.kill(server_of(server.pid), number)
        assert server.wait() == 0
    assert all(map(proc.is_over, below))
    assert mark.exists()  # children were asked first


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_while_a_server_begins_ends_everything(
    server: ServerProcess, number: signal.Signals
) -> None:
    with Follower(server) as client:
        client.start("p", "sleep 1000")
        before = crash(server)
        fresh = server_of(server.pid, before)
        below = all_below(server)
        server.signal(number)
        assert server.wait() == 0
    assert all(map(proc.is_over, [*below, fresh]))
    assert server.errors().endswith(TOLD)
    assert "Traceback" not in server.errors()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_a_server_that_begins_is_no_kill(server: ServerProcess, number: signal.Signals) -> None:
    with Follower(server) as client:
        client.start("p", "sleep 1000")
        before = crash(server)
        fresh = server_of(server.pid, before)
        below = all_below(server)
        os.kill(fresh, number)
        assert server.wait() == 0
    assert all(map(proc.is_over, [*below, fresh]))
    assert server.errors().endswith(TOLD)
    assert "Traceback" not in server.errors()


def test_a_server_without_its_keeper_ends_in_order(server: ServerProcess, tmp_path: Path) -> None:
    mark = tmp_path / "ended"
    with Follower(server) as client:
        client.start("p", POLITE.format(mark))
        client.read("p")
        below = all_below(server)
        server.signal(signal.SIGKILL)
        assert server.wait() == -signal.SIGKILL
        wait_until(lambda: all(map(proc.is_over, below)), 20)
    assert mark.exists()
    assert "the keeper of this server has ended; everything is ended now" in server.errors()


def test_nothing_is_left_where_both_are_killed(server: ServerProcess) -> None:
    with Follower(server) as client:
        client.start("p", "setsid sleep 1000 & sleep 1000")
        client.start("t", "sleep 1000", tty=True)
        crash(server)
        client.read("p")
        below = all_below(server)
        os.kill(server.pid, signal.SIGSTOP)
        os.kill(server_of(server.pid), signal.SIGKILL)
        server.signal(signal.SIGKILL)
        assert server.wait() == -signal.SIGKILL
        wait_until(lambda: all(map(proc.is_over, below)), 20)


def test_a_keeper_that_is_killed_while_a_server_begins_leaves_nothing(server: ServerProcess) -> None:
    with Follower(server) as client:
        client.start("p", "sleep 1000")
        before = crash(server)
        fresh = server_of(server.pid, before)
        below = all_below(server)
        server.signal(signal.SIGKILL)
        assert server.wait() == -signal.SIGKILL
        wait_until(lambda: all(map(proc.is_over, [*below, fresh])), 20)


def test_a_server_that_cannot_begin_is_not_started_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"ws://127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run(
            [*OURS.argv, "--listen", url, "--survive-crash"],
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
            env=base_environment(),
        )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "Error: Address in use (os error 98)\n"


def test_what_can_no_longer_be_held_is_refused_and_all_else_goes_on(tmp_path: Path) -> None:
    few = Flavour("ours", ("sh", "-c", 'ulimit -n 300; exec "$@"', "sh", *OURS.argv), 0)
    go = tmp_path / "go"
    with surviving(flavour=few) as server, Follower(server) as client:
        begun = 0
        while refusal_of(client, f"p{begun}", f"until [ -e {go} ]; do sleep 0.05; done; echo {begun}") == "":
            begun += 1
        assert refusal_of(client, "more", "true") == "--survive-crash can keep no further process here"
        assert begun > 5
        for _ in range(3):
            crash(server)
            client.read("p0")
        go.touch()
        for number in range(begun):
            client.read_all(f"p{number}")
            assert client.output(f"p{number}") == b"%d\n" % number


def refusal_of(client: Follower, process_id: str, script: str) -> str:
    """Start a process; return why not, empty if it runs."""
    try:
        client.start(process_id, script)
    except RemoteError as error:
        return error.message
    return ""


def test_an_upgrade_is_refused_with_the_reason(server: ServerProcess) -> None:
    with Follower(server) as client:
        said = refused(ServerOf(server))
        assert "a server with --survive-crash is not upgraded in place" in said
        client.start("p", "echo still here")
        client.read_all("p")
        assert client.output("p") == b"still here\n"


def test_the_service_manager_hears_the_keeper(tmp_path: Path) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        manager.settimeout(20)
        env = {**base_environment(), "NOTIFY_SOCKET": str(path)}
        with surviving(env=env) as server:
            assert told(manager) == (b"READY=1", server.pid)
            crash(server)
            assert told(manager) == (b"READY=1", server.pid)
        assert told(manager) == (b"STOPPING=1", server.pid)


def told(manager: socket.socket) -> tuple[bytes, int]:
    """Return what a service manager is told next, and by whom."""
    data, ancillary, _, _ = manager.recvmsg(4096, socket.CMSG_SPACE(12))
    (pid,) = [int.from_bytes(content[:4], "little") for _, _, content in ancillary]
    return data, pid


def test_a_keeper_does_nothing_while_nothing_happens(server: ServerProcess) -> None:
    with Follower(server) as client:
        client.start("p", "sleep 1000")
        client.read("p", 1000)
        before = switches(server.pid)
        client.read("p", 1500)
        assert switches(server.pid) == before
    assert len(servers_of(server.pid)) == 1


def switches(pid: int) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line for line in lines if line.startswith("voluntary_ctxt_switches"))


class ServerOf:
    """The server below a keeper, to be upgraded."""

    def __init__(self, server: ServerProcess) -> None:
        self.process = server.process
        self.pid = server_of(server.pid)
        self.errors = server.errors
