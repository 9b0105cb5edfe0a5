"""A client that does not read holds back what is made for it, and nothing else; memory stays bounded."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Connect, StartServer
from tests.support.peer import encode
from tests.support.proc import is_over, peak_bytes, reset_peak, resident_bytes, state
from tests.support.producer import Producer
from tests.support.running import Outcome, event, outcome, output_until, run, start, terminate
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until
from tests.support.ws_peer import TEXT, WsPeer, client_frame

MIB = 1024 * 1024
GIB = 1024 * MIB
GROWTH = 8 * MIB
bounded = pytest.mark.ours_only("memory of the reference has other bounds")


def growth_of(server: ServerProcess, act: Callable[[], object]) -> int:
    """Return by how much the server's memory grew at most while something was done."""
    before = resident_bytes(server.pid)
    reset_peak(server.pid)
    act()
    grown = peak_bytes(server.pid) - before
    print(f"memory grew by {grown / MIB:.2f} MiB")  # noqa: T201 - shown when the test fails
    return grown


@bounded
def test_a_producer_of_a_gigabyte_is_held_back_in_little_memory(
    start_server: StartServer, connect: Connect
) -> None:
    server = start_server()
    sleeper, other = connect(server), connect(server)
    sleeper.open_session()
    other.open_session()
    run(other, "warm", "echo x")
    producer = Producer(sleeper, GIB)
    grown = growth_of(server, producer.wait_until_blocked)
    assert producer.written() < 64 * MIB
    assert grown < GROWTH
    assert run(other, "q", "echo fine").stdout == b"fine\n"
    assert state(producer.pid) == "S"
    assert terminate(sleeper, "p")


def test_every_byte_arrives_once_the_client_reads_on(peer: WsPeer, tmp_path: Path) -> None:
    content = b"".join(b"%015d\n" % number for number in range(MIB))
    (tmp_path / "f").write_bytes(content)
    producer = Producer(peer, len(content), source=tmp_path / "f")
    assert producer.wait_until_blocked() < len(content)
    outcome(peer, "p", producer.collected)
    assert producer.collected.stdout.partition(b"\n")[2] == content
    assert producer.collected.exit_code == 0


def test_both_streams_of_a_process_are_held_back(peer: WsPeer) -> None:
    start(peer, "p", f"echo $$; head -c {4 * MIB} /dev/zero >&2 & exec head -c {4 * MIB} /dev/zero")
    collected = Outcome()
    output_until(peer, "p", b"\n", collected)
    outcome(peer, "p", collected)
    assert collected.output("stderr") == bytes(4 * MIB)
    assert len(collected.stdout) > 4 * MIB


@pytest.mark.parametrize("leave", [WsPeer.abort, WsPeer.close], ids=["reset", "close"])
def test_when_the_sleeper_leaves_its_process_runs_freely(
    connect: Connect, server: ServerProcess, leave: Callable[[WsPeer], None]
) -> None:
    sleeper = connect()
    sleeper.open_session()
    producer = Producer(sleeper, 256 * MIB)
    assert producer.wait_until_blocked() < 256 * MIB
    leave(sleeper)
    wait_until(lambda: is_over(producer.pid), 30)


@bounded
def test_a_detached_producer_costs_no_more_than_what_is_retained(
    start_server: StartServer, connect: Connect
) -> None:
    server = start_server()
    peer = connect(server)
    peer.open_session()
    producer = Producer(peer, 512 * MIB)

    def run_detached() -> None:
        peer.close()
        wait_until(lambda: is_over(producer.pid), 30)

    assert growth_of(server, run_detached) < GROWTH


@bounded
def test_answers_nobody_reads_hold_back_their_requests(
    start_server: StartServer, connect: Connect, tmp_path: Path
) -> None:
    (tmp_path / "f").write_bytes(bytes(MIB))
    server = start_server()
    peer, other = connect(server), connect(server)
    peer.open_session()
    other.open_session()
    peer.call("fs/readFile", {"path": str(tmp_path / "f")})
    count = 100
    for number in range(count):
        peer.send({"id": 1000 + number, "method": "fs/readFile", "params": {"path": str(tmp_path / "f")}})
    grown = growth_of(server, lambda: other.call("environment/info"))
    peer.send({"id": 1, "method": "environment/info"})
    assert grown < GROWTH
    ids: list[int] = []
    while not ids or ids[-1] != 1:
        ids.append((peer.receive() or {})["id"])
    assert ids == [*range(1000, 1000 + count), 1]


@bounded
def test_a_flood_of_requests_nobody_reads_the_answers_of_is_not_taken_for_ever(
    start_server: StartServer, connect: Connect
) -> None:
    server = start_server()
    flooder, other = connect(server), connect(server)
    other.open_session()
    frame = client_frame(TEXT, encode({"id": 1, "method": "no/such", "params": "x" * 200})) * 500
    flooder.socket.settimeout(0.5)

    def flood() -> None:
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline:
            flooder.socket.sendall(frame)

    def flood_until_it_is_held_back() -> None:
        with pytest.raises(TimeoutError):
            flood()

    assert growth_of(server, flood_until_it_is_held_back) < GROWTH
    other.call("environment/info")


@bounded
def test_over_stdio_a_reader_that_sleeps_holds_back_the_producer(start_server: StartServer) -> None:
    server = start_server(listen="stdio")
    peer = server.stdio()
    with peer:
        server.close_stdin()
        peer.open_session()
        producer = Producer(peer, GIB)
        assert growth_of(server, producer.wait_until_blocked) < GROWTH
        assert terminate(peer, "p")
        peer.close_input()
        assert server.wait() == 0


@pytest.mark.long
@pytest.mark.timeout(180)
def test_a_gigabyte_arrives_whole_after_a_long_sleep(start_server: StartServer, connect: Connect) -> None:
    """The sleep is longer than a peer may leave data unacknowledged (15 s): this one is alive."""
    server = start_server()
    peer, other = connect(server), connect(server)
    peer.open_session()
    other.open_session()
    producer = Producer(peer, GIB)
    run(other, "clock", ["sleep", "25"])
    assert producer.wait_until_blocked() < GIB

    def read_on() -> None:
        while not producer.collected.complete:
            message = event(peer, "p")
            producer.collected.take(message)
            received[0] += sum(len(data) for _, _, data in producer.collected.chunks)
            producer.collected.chunks.clear()

    received = [0]
    assert growth_of(server, read_on) < GROWTH
    assert received[0] >= GIB
    assert peer.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
