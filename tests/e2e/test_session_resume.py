"""What a client that comes back finds: its processes, the output it missed, and none of its connection."""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Connect, StartServer
from tests.support.peer import RemoteError
from tests.support.proc import (
    descriptor_count,
    descriptors,
    marked,
    may_look_into,
    require_a_look_into,
    wait_over,
)
from tests.support.producer import Producer
from tests.support.running import (
    PATH,
    chunks_of,
    event,
    outcome,
    output_until,
    read,
    start,
    start_params,
    terminate,
    write,
)
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until
from tests.support.ws_peer import WsPeer

RETAINED = 1024 * 1024


@pytest.fixture
def server(start_server: StartServer) -> ServerProcess:
    """A server of the test's own, so that its descriptors can be counted."""
    return start_server()


class Fifo:
    """A process that prints what a test writes into a FIFO, and ends when the test closes it."""

    def __init__(self, peer: WsPeer, folder: Path) -> None:
        path = folder / "fifo"
        os.mkfifo(path)
        start(peer, "p", f"echo $$; exec cat {shlex.quote(str(path))}")
        self.pid = int(output_until(peer, "p", b"\n"))
        self.end = os.open(path, os.O_WRONLY)

    def print(self, data: bytes) -> None:
        os.write(self.end, data)

    def close(self) -> None:
        if self.end >= 0:
            os.close(self.end)
        self.end = -1


@pytest.fixture
def fifo(peer: WsPeer, tmp_path: Path) -> Iterator[Fifo]:
    """Such a process, in the session of `peer`."""
    made = Fifo(peer, tmp_path)
    yield made
    made.close()


def leave(peer: WsPeer, server: ServerProcess, closing: int = 1) -> None:
    """Drop a connection and wait until the server has noticed, and has closed so many descriptors."""
    before = descriptor_count(server.pid)
    peer.close()
    wait_until(lambda: descriptor_count(server.pid) <= before - closing)


@pytest.fixture
def session(connect: Connect) -> tuple[WsPeer, str]:
    """A connection and the id of its session."""
    connection = connect()
    return connection, connection.open_session()


@pytest.fixture
def peer(session: tuple[WsPeer, str]) -> WsPeer:
    """The connection of `session`."""
    return session[0]


def resume(connect: Connect, session: tuple[WsPeer, str]) -> WsPeer:
    """Come back and greet completely."""
    connection = connect()
    assert connection.open_session(session[1]) == session[1]
    return connection


def test_output_flows_before_the_greeting_is_complete(
    connect: Connect, server: ServerProcess, session: tuple[WsPeer, str], fifo: Fifo
) -> None:
    leave(session[0], server)
    back = connect()
    assert (
        back.call("initialize", {"clientName": "c", "resumeSessionId": session[1]})["sessionId"] == session[1]
    )
    fifo.print(b"hello")
    assert output_until(back, "p", b"hello") == b"hello"
    with pytest.raises(RemoteError, match="client must send initialized before using exec methods"):
        read(back, "p")
    fifo.close()


def test_missed_output_is_read_and_not_sent_again(
    connect: Connect, server: ServerProcess, session: tuple[WsPeer, str], fifo: Fifo
) -> None:
    require_a_look_into(server.pid)
    pipes = {os.readlink(f"/proc/{fifo.pid}/fd/{number}") for number in (1, 2)}
    leave(session[0], server)
    fifo.print(b"missed")
    fifo.close()
    wait_over(fifo.pid)
    wait_until(lambda: pipes.isdisjoint(descriptors(server.pid).values()))
    # All is recorded: ends are reported in their order, and that of a later process is known.
    later = connect()
    later.open_session()
    start(later, "later", "true")
    outcome(later, "later")
    back = resume(connect, session)
    result = read(back, "p", after=1)
    assert chunks_of(result) == b"missed"
    assert (result["exited"], result["exitCode"], result["closed"], result["nextSeq"]) == (True, 0, True, 5)
    start(back, "q", "echo later")
    assert event(back, "q")["params"]["seq"] == 1
    assert not [message for message in back.kept if message["params"]["processId"] == "p"]


def test_a_waiting_read_continues_where_the_old_connection_was(
    connect: Connect, server: ServerProcess, session: tuple[WsPeer, str], fifo: Fifo
) -> None:
    leave(session[0], server)
    back = resume(connect, session)
    back.send(
        {"id": 9, "method": "process/read", "params": {"processId": "p", "afterSeq": 1, "waitMs": 20_000}}
    )
    fifo.print(b"new")
    assert chunks_of(back.take({"id": 9})["result"]) == b"new"
    fifo.close()


def test_what_was_dropped_meanwhile_is_announced(
    connect: Connect, server: ServerProcess, session: tuple[WsPeer, str], tmp_path: Path
) -> None:
    size = 3 * RETAINED
    go = tmp_path / "go"
    os.mkfifo(go)
    start(session[0], "p", f"echo $$; cat {shlex.quote(str(go))}; head -c {size} /dev/zero; printf end")
    pid = int(output_until(session[0], "p", b"\n"))
    before = descriptor_count(server.pid)
    leave(session[0], server)
    go.write_bytes(b"")
    wait_over(pid)
    wait_until(lambda: descriptor_count(server.pid) <= before - 3)
    result = read(resume(connect, session), "p", after=1)
    kept = chunks_of(result)
    assert RETAINED - 65_536 < len(kept) <= RETAINED
    assert kept.endswith(b"\0end")
    first = result["chunks"][0]["seq"]
    assert first > 2
    if not server.flavour.is_reference:
        assert result["oldestSeq"] == first
        assert result["lostBytes"] + len(kept) == size + len(f"{pid}\nend")


def test_the_same_write_is_not_written_twice(
    connect: Connect, server: ServerProcess, session: tuple[WsPeer, str]
) -> None:
    start(session[0], "p", ["cat"], pipeStdin=True)
    assert write(session[0], "p", b"once", "w1") == "accepted"
    output_until(session[0], "p", b"once")
    leave(session[0], server)
    back = resume(connect, session)
    assert write(back, "p", b"once", "w1") == "accepted"
    assert write(back, "p", b"more", "w2") == "accepted"
    assert output_until(back, "p", b"more") == b"more"


def test_open_files_are_gone(connect: Connect, server: ServerProcess, session: tuple[WsPeer, str]) -> None:
    session[0].call("fs/open", {"handleId": "h", "path": "/etc/passwd"})
    leave(session[0], server, closing=2)
    if may_look_into(server.pid):
        wait_until(lambda: "/etc/passwd" not in descriptors(server.pid).values())
    block = {"handleId": "h", "offset": 0, "len": 10}
    with pytest.raises(RemoteError, match="unknown file read handle"):
        resume(connect, session).call("fs/readBlock", block)


def test_streamed_bodies_are_gone(
    connect: Connect, server: ServerProcess, session: tuple[WsPeer, str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        params = {"method": "GET", "url": url, "requestId": "r", "streamResponse": True}
        session[0].send({"id": 9, "method": "http/request", "params": params})
        web, _ = listener.accept()
        with web:
            web.settimeout(20)
            web.recv(65_536)
            web.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\npart")
            assert session[0].take({"id": 9})["result"]["status"] == 200
            session[0].notification("http/request/bodyDelta")
            leave(session[0], server)
            assert web.recv(1) == b""
    back = resume(connect, session)
    back.call("environment/info")
    assert not back.kept


def test_a_process_that_was_held_back_goes_on_after_the_resume(
    connect: Connect, session: tuple[WsPeer, str]
) -> None:
    producer = Producer(session[0], 1024**3)
    producer.wait_until_blocked()
    session[0].abort()
    back = resume(connect, session)
    first = event(back, "p")["params"]["seq"]
    assert first > 2
    assert [event(back, "p")["params"]["seq"] for _ in range(50)] == list(range(first + 1, first + 51))
    assert terminate(back, "p")


@pytest.mark.ours_only("there a request that is being handled is abandoned")
@pytest.mark.parametrize("close_frame", [True, False])
def test_what_was_asked_right_before_the_end_is_done(
    connect: Connect, session: tuple[WsPeer, str], close_frame: bool
) -> None:
    peer = session[0]
    mark = f"mark-{os.getpid()}-{session[1]}"
    for number in range(3):
        start(peer, f"p{number}", "exec sleep 100", env=PATH | {"MARK": mark})
    wait_until(lambda: len(marked(mark)) == 3)
    for number in range(3):
        peer.send({"id": number, "method": "process/terminate", "params": {"processId": f"p{number}"}})
    if close_frame:
        peer.send_frame(8, b"\x03\xe8")
    peer.close()
    wait_until(lambda: not marked(mark))


@pytest.mark.ours_only("there a request that is being handled is abandoned")
def test_a_start_whose_answer_was_lost_can_be_undone(connect: Connect, session: tuple[WsPeer, str]) -> None:
    session[0].send({"id": 9, "method": "process/start", "params": start_params("p", "exec sleep 100")})
    session[0].close()
    back = resume(connect, session)
    wait_until(lambda: terminate(back, "p"))
    assert outcome(back, "p").closed_seq
