"""What clients see when the process that starts all others dies or hangs, and that work goes on."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.e2e.conftest import Connect, StartServer
from tests.support.peer import RemoteError
from tests.support.proc import descriptor_count, marked, state, zygotes_of
from tests.support.running import (
    PATH,
    Outcome,
    outcome,
    output_until,
    read,
    run,
    start,
    start_params,
    terminate,
)
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until
from tests.support.ws_peer import WsPeer

SPAWN_TIMEOUT = 5.0  # a zygote that is not kept from it starts sooner on a busy machine, too
pytestmark = pytest.mark.ours_only("only ours has such a process")


@pytest.fixture
def own_server(start_server: StartServer) -> ServerProcess:
    """A server whose hanging starts are given up soon."""
    return start_server(settings={"spawn_timeout_s": SPAWN_TIMEOUT})


@pytest.fixture
def peer(own_server: ServerProcess, connect: Connect) -> WsPeer:
    """A session on it."""
    connection = connect(own_server)
    connection.open_session()
    return connection


@contextmanager
def hanging_zygote(server: ServerProcess) -> Iterator[int]:
    """Stop the one zygote: as in an exec on a file system that does not answer."""
    (zygote,) = zygotes_of(server.pid)
    os.kill(zygote, signal.SIGSTOP)
    wait_until(lambda: state(zygote) == "T")
    try:
        yield zygote
    finally:
        os.kill(zygote, signal.SIGCONT)


def test_after_its_death_sessions_see_exits_and_the_next_start_works(
    own_server: ServerProcess, peer: WsPeer, connect: Connect
) -> None:
    other = connect(own_server)
    other.open_session()
    mark = str(uuid.uuid4())
    collected = {}
    for name, script, tty in [
        ("pipe", "echo ready; exec sleep 100", False),
        ("tty", "echo ready; exec sleep 100", True),
        ("grand", "trap '' HUP TERM; setsid sleep 100 & echo ready; exec sleep 100", False),
    ]:
        collected[name] = Outcome()
        start(peer, name, script, tty=tty, env=PATH | {"MARK": mark})
        output_until(peer, name, b"ready", collected[name])
    (zygote,) = zygotes_of(own_server.pid)
    os.kill(zygote, signal.SIGKILL)
    codes = {name: outcome(peer, name, so_far).exit_code for name, so_far in collected.items()}
    assert codes == {"pipe": 137, "tty": 1, "grand": 137}
    wait_until(lambda: not marked(mark))
    assert read(peer, "pipe")["closed"]
    assert run(peer, "next", "echo works").stdout == b"works\n"
    assert run(other, "next", "echo works").stdout == b"works\n"
    assert zygote not in zygotes_of(own_server.pid)
    assert len(zygotes_of(own_server.pid)) == 1


def test_deaths_one_after_the_other_leave_nothing_open(own_server: ServerProcess, peer: WsPeer) -> None:
    run(peer, "warm", "exit 0")
    before = descriptor_count(own_server.pid)
    for number in range(5):
        start(peer, f"p{number}", "exec sleep 100", tty=number % 2 == 0)
        (zygote,) = zygotes_of(own_server.pid)
        os.kill(zygote, signal.SIGKILL)
        outcome(peer, f"p{number}")
        assert run(peer, f"q{number}", "exit 3").exit_code == 3
    wait_until(lambda: descriptor_count(own_server.pid) <= before)
    assert "Traceback" not in own_server.errors()


def test_a_start_that_hangs_is_an_error_in_time_and_starts_nothing_later(
    own_server: ServerProcess, peer: WsPeer
) -> None:
    mark = str(uuid.uuid4())
    with hanging_zygote(own_server):
        begun = time.monotonic()
        with pytest.raises(RemoteError) as refusal:
            start(peer, "p", "exec sleep 100", env=PATH | {"MARK": mark})
        assert SPAWN_TIMEOUT * 0.9 <= time.monotonic() - begun < SPAWN_TIMEOUT + 20
        assert refusal.value.code == -32603
        assert run(peer, "p", "echo the id is free").stdout == b"the id is free\n"
        assert len(zygotes_of(own_server.pid)) == 2
    wait_until(lambda: len(zygotes_of(own_server.pid)) == 1)
    assert marked(mark) == []


def test_while_a_start_hangs_others_are_served(
    own_server: ServerProcess, peer: WsPeer, connect: Connect
) -> None:
    other = connect(own_server)
    other.open_session()
    with hanging_zygote(own_server):
        peer.send({"id": 1000, "method": "process/start", "params": start_params("p", "exit 0")})
        other.call("environment/info")
        assert run(other, "q", "echo works").stdout == b"works\n"
        assert "error" in peer.take({"id": 1000})


def test_children_of_a_hanging_zygote_can_be_ended_and_are_seen_to_end(
    own_server: ServerProcess, peer: WsPeer
) -> None:
    collected = Outcome()
    start(peer, "p", "echo $$; exec sleep 100")
    start(peer, "q", "read x; exit 5", tty=True)
    output_until(peer, "p", b"\n", collected)
    with hanging_zygote(own_server):
        with pytest.raises(RemoteError):
            start(peer, "hangs", "exit 0")
        assert terminate(peer, "p")
        assert outcome(peer, "p", collected).exit_code == 137
        peer.call("process/write", {"processId": "q", "chunk": "Cg==", "writeId": "w"})
        assert outcome(peer, "q").exit_code == 5


def test_terminate_at_a_zygote_that_hangs_unnoticed(own_server: ServerProcess, peer: WsPeer) -> None:
    collected = Outcome()
    start(peer, "p", "echo $$; exec sleep 100")
    output_until(peer, "p", b"\n", collected)
    with hanging_zygote(own_server):
        assert terminate(peer, "p")
    assert outcome(peer, "p", collected).exit_code == 137


def test_a_start_that_outlasts_its_session_leaves_no_process(
    start_server: StartServer, connect: Connect
) -> None:
    server = start_server(settings={"detached_session_ttl_s": 0.2, "spawn_timeout_s": 30.0})
    peer, clock = connect(server), connect(server)
    clock.open_session()
    session = peer.open_session()
    mark = str(uuid.uuid4())
    with hanging_zygote(server):
        params = start_params("p", "exec sleep 100", env=PATH | {"MARK": mark})
        before = descriptor_count(server.pid)
        peer.send({"id": 1000, "method": "process/start", "params": params})
        wait_until(lambda: descriptor_count(server.pid) > before)  # else the other start could come first
        peer.close()
        run(clock, "clock", ["sleep", "0.4"])  # by a second zygote
        with pytest.raises(RemoteError, match="unknown session id"):
            connect(server).open_session(session)
    run(clock, "after", "exit 0")
    wait_until(lambda: len(zygotes_of(server.pid)) == 1 or not marked(mark))
    wait_until(lambda: not marked(mark))
    assert "Traceback" not in server.errors()
