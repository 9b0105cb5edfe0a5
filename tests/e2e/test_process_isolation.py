"""What a process gets of the server's own: nothing but what the request says; and many of them at once."""

from __future__ import annotations

import os
import resource
import uuid
from pathlib import Path

import pytest

from tests.e2e.conftest import Connect, StartServer
from tests.support.proc import (
    ZOMBIE,
    children_of,
    command_line,
    descendants_of,
    descriptor_count,
    descriptors,
    may_look_into,
    require_a_look_into,
    state,
    thread_count,
    zygotes_of,
)
from tests.support.running import (
    Outcome,
    outcome,
    output_until,
    read,
    run,
    start,
    start_params,
    take_where,
    terminate,
    write,
)
from tests.support.server_process import base_environment
from tests.support.waiting import wait_until
from tests.support.ws_peer import WsPeer

PARALLEL = 8
ROUNDS = 6
LIVE, TERMINALS = 500, 300


def kinds(number: int) -> dict[str, bool]:
    """Return how the n-th process is started: all three ways by turns."""
    return {"tty": number % 3 == 0, "pipeStdin": number % 3 == 1}


def pid_of(peer: WsPeer, process_id: str) -> int:
    """Return the id that a script has printed, once it has become `sleep`."""
    pid = int(output_until(peer, process_id, b"\n"))
    wait_until(lambda: command_line(pid).startswith(b"sleep"))
    return pid


def test_children_hold_nothing_but_stdio_under_parallel_starts(connect: Connect) -> None:
    peers = [connect() for _ in range(PARALLEL)]
    for peer in peers:
        peer.open_session()
    for number in range(ROUNDS):
        params = start_params(f"p{number}", "echo $$; exec sleep 100", **kinds(number))
        for peer in peers:
            peer.send({"id": 1000 + number, "method": "process/start", "params": params})
    for peer in peers:
        for number in range(ROUNDS):
            pid = pid_of(peer, f"p{number}")
            wait_until(lambda pid=pid: set(descriptors(pid)) == {0, 1, 2})  # type: ignore[misc]
    for peer in peers:
        for number in range(ROUNDS):
            assert terminate(peer, f"p{number}")


def test_the_servers_environment_stays_with_it(start_server: StartServer, connect: Connect) -> None:
    secret = f"secret-{uuid.uuid4()}"
    server = start_server(env=base_environment() | {"MY_SECRET": secret})
    peer = connect(server)
    peer.open_session()
    for number in range(3):
        start(peer, f"p{number}", "echo $$; exec sleep 100", **kinds(number))
        pid = pid_of(peer, f"p{number}")
        names = {line.partition(b"=")[0] for line in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")}
        assert names - {b"SHELL", b"PWD", b"SHLVL", b"OLDPWD", b"_", b""} == {b"PATH"}
    for pid in filter(may_look_into, descendants_of(server.pid)):
        assert secret.encode() not in Path(f"/proc/{pid}/environ").read_bytes()


def test_a_policy_takes_from_the_servers_environment(start_server: StartServer, connect: Connect) -> None:
    server = start_server(env=base_environment() | {"MY_TOKEN": "1", "MY_VALUE": "2"})
    peer = connect(server)
    peer.open_session()
    policy = {"inherit": "all", "ignoreDefaultExcludes": False, "exclude": [], "set": {}, "includeOnly": []}
    result = run(peer, "p", ["env"], envPolicy=policy, env={"OWN": "3"})
    lines = result.stdout.decode().splitlines()
    assert {"MY_VALUE=2", "OWN=3"} <= set(lines)
    assert not [line for line in lines if line.startswith(("MY_TOKEN", "EXECSERVER_SETTINGS"))]


@pytest.mark.ours_only("the reference has a parent-death signal, and no zygote")
def test_the_zygote_holds_no_secret(start_server: StartServer) -> None:
    secret = f"secret-{uuid.uuid4()}"
    server = start_server(env=base_environment() | {"MY_SECRET": secret})
    (zygote,) = zygotes_of(server.pid)
    require_a_look_into(zygote)
    assert Path(f"/proc/{zygote}/environ").read_bytes().strip(b"\0") == b""
    assert set(descriptors(zygote)) <= set(range(8))


def test_each_process_leads_its_own_session(peer: WsPeer) -> None:
    for number in range(3):
        start(peer, f"p{number}", "echo $$; exec sleep 100", **kinds(number))
        pid = pid_of(peer, f"p{number}")
        assert (os.getpgid(pid), os.getsid(pid)) == (pid, pid)
        assert terminate(peer, f"p{number}")


def test_limits_and_umask_are_those_the_server_was_started_with(
    start_server: StartServer, connect: Connect
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = os.umask(0o027)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        server = start_server()
    finally:
        os.umask(before)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    peer = connect(server)
    peer.open_session()
    assert run(peer, "p", "umask; ulimit -n").stdout.decode().split() == ["0027", str(min(soft, 512))]


@pytest.mark.ours_only("300 terminals are too many there")
def test_500_live_processes_all_answer(start_server: StartServer, connect: Connect) -> None:
    server = start_server()
    peer = connect(server)
    peer.open_session()
    threads = thread_count(server.pid)
    for number in range(LIVE):
        params = start_params(f"p{number}", ["cat"], tty=number < TERMINALS, pipeStdin=True)
        peer.send({"id": 1000 + number, "method": "process/start", "params": params})
    for number in range(LIVE):
        assert peer.take({"id": 1000 + number})["result"]["processId"] == f"p{number}"
    assert sum(entry["running"] for entry in peer.call("process/list")["processes"]) == LIVE
    for number in range(LIVE):
        assert write(peer, f"p{number}", b"%d\n" % number, "w") == "accepted"
    answers: dict[str, bytes] = {}
    expected = {
        f"p{number}": b"%d\r\n%d\r\n" % (number, number) if number < TERMINALS else b"%d\n" % number
        for number in range(LIVE)
    }
    while answers != expected:
        message = take_where(peer, lambda message: message.get("method") == "process/output")
        collected = Outcome()
        collected.take(message)
        name = message["params"]["processId"]
        answers[name] = answers.get(name, b"") + collected.stdout + collected.pty
    assert thread_count(server.pid) <= threads + 1
    for number in range(LIVE):
        peer.send({"id": 1000 + number, "method": "process/terminate", "params": {"processId": f"p{number}"}})
    for number in range(LIVE):
        assert peer.take({"id": 1000 + number})["result"] == {"running": True}
    wait_until(lambda: not [p for p in descendants_of(server.pid) if p not in zygotes_of(server.pid)])
    assert read(peer, f"p{LIVE - 1}")["exited"]


@pytest.mark.ours_only("descriptors are counted differently there")
def test_after_200_processes_nothing_is_left_behind(start_server: StartServer, connect: Connect) -> None:
    server = start_server()
    peer = connect(server)
    peer.open_session()
    run(peer, "warm", "exit 0", tty=True)
    before = descriptor_count(server.pid)
    for number in range(200):
        start(peer, f"p{number}", "echo x; exit 0", **kinds(number))
    for number in range(200):
        assert outcome(peer, f"p{number}").exit_code == 0
    wait_until(lambda: descriptor_count(server.pid) <= before)
    (zygote,) = zygotes_of(server.pid)
    assert descriptor_count(zygote) <= 8
    wait_until(lambda: children_of(zygote) == [])
    assert children_of(server.pid) == [zygote]


@pytest.mark.ours_only("now and then one stays there until another child ends")
def test_no_zombie_is_left(start_server: StartServer, connect: Connect) -> None:
    server = start_server()
    peer = connect(server)
    peer.open_session()
    for number in range(20):
        start(peer, f"p{number}", "sh -c 'exit 1' & setsid -f true; exit 0", **kinds(number))
    start(peer, "killed", "exec sleep 100")
    assert terminate(peer, "killed")
    for name in ["killed", *(f"p{number}" for number in range(20))]:
        outcome(peer, name)
    wait_until(lambda: not [pid for pid in descendants_of(server.pid) if state(pid) == ZOMBIE])
