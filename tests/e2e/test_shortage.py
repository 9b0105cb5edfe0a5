"""When descriptors run out: requests fail, connections wait, and all is well again afterwards."""

from __future__ import annotations

import resource

import pytest

from tests.e2e.conftest import Connect, StartServer
from tests.support.peer import RemoteError
from tests.support.proc import descriptor_count, descriptors
from tests.support.raw_http import RawHttp
from tests.support.running import run, start, terminate
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until
from tests.support.ws_peer import WsPeer

SPARE = 10
pytestmark = pytest.mark.ours_only("ours raises its own limit, and is the one tested")


@pytest.fixture
def own_server(start_server: StartServer) -> ServerProcess:
    """A server to be put on a diet."""
    return start_server()


@pytest.fixture
def peer(own_server: ServerProcess, connect: Connect) -> WsPeer:
    """A session on it that has run something."""
    connection = connect(own_server)
    connection.open_session()
    run(connection, "warm", "exit 0", tty=True)
    return connection


def limit_descriptors(server: ServerProcess, spare: int) -> None:
    """Leave the server that many more descriptors."""
    _, hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (max(descriptors(server.pid)) + 1 + spare, hard))


def start_many(peer: WsPeer, tty: bool, started: list[str]) -> None:
    for number in range(SPARE + 1):
        start(peer, f"p{number}", "echo ready; exec sleep 100", tty=tty)
        started.append(f"p{number}")


@pytest.mark.parametrize("tty", [False, True], ids=["pipe", "tty"])
def test_a_start_without_descriptors_fails_and_later_ones_work(
    own_server: ServerProcess, peer: WsPeer, tty: bool
) -> None:
    before = descriptor_count(own_server.pid)
    limit_descriptors(own_server, SPARE)
    started: list[str] = []
    with pytest.raises(RemoteError) as refusal:
        start_many(peer, tty, started)
    assert (refusal.value.code, refusal.value.message) == (
        -32603,
        "No file descriptors available (os error 24)",
    )
    assert len(started) >= 2
    for name in started:
        assert terminate(peer, name)
    wait_until(lambda: descriptor_count(own_server.pid) <= before)
    assert run(peer, "again", "echo x", tty=tty).exit_code == 0


def test_file_operations_without_descriptors_fail_and_the_connection_lives(
    own_server: ServerProcess, peer: WsPeer
) -> None:
    limit_descriptors(own_server, 0)
    with pytest.raises(RemoteError, match="os error 24"):
        peer.call("fs/readFile", {"path": "/etc/hostname"})
    limit_descriptors(own_server, SPARE)
    assert peer.call("fs/readFile", {"path": "/etc/hostname"})["dataBase64"]


def test_a_connection_waits_for_a_descriptor(own_server: ServerProcess, peer: WsPeer) -> None:
    limit_descriptors(own_server, 0)
    with RawHttp(own_server.url) as late:
        late.send(b"GET /readyz HTTP/1.1\r\n\r\n")
        wait_until(lambda: "cannot accept connections" in own_server.errors())
        peer.call("environment/info")
        limit_descriptors(own_server, SPARE)
        assert late.response().status == 200
