"""What goes on when a server with --survive-crash is killed: processes, input, ends, sessions."""

from __future__ import annotations

import base64
import hashlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import proc
from tests.support.crashes import Follower, crash, server_of, surviving
from tests.support.peer import Json, Peer, RemoteError
from tests.support.running import start, start_params
from tests.support.sandboxes import read_only
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with surviving() as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Follower]:
    with Follower(server) as follower:
        yield follower


@contextmanager
def without_server(server: ServerProcess) -> Iterator[None]:
    """Kill the server, and have none until the block is left."""
    pid = server_of(server.pid)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: proc.is_over(pid), 20)
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


def pid_of(client: Follower, process_id: str) -> int:
    found = client.call("process/list", {})["processes"]
    return int(next(each["pid"] for each in found if each["processId"] == process_id))


@pytest.mark.parametrize("sandboxed", [False, True])
@pytest.mark.parametrize("tty", [False, True])
def test_the_end_of_a_process_while_no_server_is_there_is_told(
    server: ServerProcess, client: Follower, tmp_path: Path, sandboxed: bool, tty: bool
) -> None:
    go = tmp_path / "go"
    more = {"sandbox": read_only(tmp_path)} if sandboxed else {}
    script = f"echo before; until [ -e {go} ]; do sleep 0.02; done; echo after; exit 42"
    client.start("p", script, tty=tty, **more)
    while b"before" not in client.output("p", "pty" if tty else "stdout"):
        client.read("p")
    pid = pid_of(client, "p")
    with without_server(server):
        go.touch()
        wait_until(lambda: proc.is_over(pid), 20)
    client.read_all("p")
    assert client.ends["p"]["exitCode"] == 42
    told = client.output("p", "pty" if tty else "stdout")
    assert told.replace(b"\r", b"") == b"before\nafter\n"


def test_a_death_by_signal_while_no_server_is_there_keeps_its_number(
    server: ServerProcess, client: Follower
) -> None:
    client.start("p", "exec sleep 1000")
    pid = pid_of(client, "p")
    with without_server(server):
        os.kill(pid, signal.SIGUSR1)
        wait_until(lambda: proc.is_over(pid), 20)
    client.read_all("p")
    assert client.ends["p"]["exitCode"] == 128 + signal.SIGUSR1


def test_unread_output_of_a_detached_session_is_there_with_its_numbers(server: ServerProcess) -> None:
    with server.connect() as peer:
        session = peer.open_session()
        start(peer, "p", "head -c 700000 /dev/urandom | od -An -tx1 -w32 -v | head -c 1000000; sleep 1000")
    with server.connect() as peer:
        peer.open_session(resume=session)
        wait_until(lambda: size_of(read(peer, "p")) == 1_000_000, 30)
        before = read(peer, "p")["chunks"]
    for _ in range(2):
        crash(server)
        with Follower(server) as other, reconnected(server, session) as peer:
            assert other.session != session
            assert read(peer, "p")["chunks"] == before


def test_what_was_dropped_stays_dropped_and_counted(server: ServerProcess) -> None:
    with server.connect() as peer:
        session = peer.open_session()
        start(peer, "p", "head -c 5000000 /dev/zero; sleep 1000")
    with server.connect() as peer:
        peer.open_session(resume=session)
        wait_until(lambda: total(read(peer, "p")) == 5_000_000, 30)
        before = read(peer, "p")
    crash(server)
    with reconnected(server, session) as peer:
        assert read(peer, "p") == before


def test_input_that_was_accepted_is_passed_on_once_and_in_order(
    server: ServerProcess, client: Follower
) -> None:
    pieces = [bytes([number]) * 50_000 for number in range(60)]
    client.start("p", "sleep 2; sha256sum", pipeStdin=True)
    for number, piece in enumerate(pieces):
        assert client.write("p", piece, str(number)) == "accepted"
        if number % 20 == 19:
            crash(server)
            assert client.write("p", piece, str(number)) == "accepted"
    client.call("process/closeStdin", {"processId": "p"})
    crash(server)
    client.read_all("p")
    expected = hashlib.sha256(b"".join(pieces)).hexdigest()
    assert client.output("p").split()[0].decode() == expected


def test_a_terminal_goes_on_with_its_size_and_its_keys(server: ServerProcess, client: Follower) -> None:
    client.start("t", "echo ready; while read x; do stty size; echo got $x; done; echo over", tty=True)
    while b"ready" not in client.output("t", "pty"):
        client.read("t")
    crash(server)
    assert client.write("t", b"one\n", "1") == "accepted"
    client.call("process/resize", {"processId": "t", "rows": 33, "cols": 77})
    assert client.write("t", b"two\n", "2") == "accepted"
    client.call("process/closeStdin", {"processId": "t"})
    client.read_all("t")
    shown = client.output("t", "pty")
    assert shown.count(b"got one") == shown.count(b"got two") == 1
    assert b"33 77" in shown
    assert shown.endswith(b"over\r\n")


def test_processes_can_be_signalled_and_ended_afterwards(server: ServerProcess, client: Follower) -> None:
    client.start("a", "trap 'echo usr; exit 5' USR1; echo ready; while :; do sleep 0.02; done")
    client.start("b", "sleep 1000")
    while b"ready" not in client.output("a"):
        client.read("a")
    crash(server)
    client.call("process/signal", {"processId": "a", "signal": "usr1"})
    client.read_all("a")
    assert (client.output("a"), client.ends["a"]["exitCode"]) == (b"ready\nusr\n", 5)
    assert client.call("process/terminate", {"processId": "b"}) == {"running": True}
    crash(server)
    client.read_all("b")
    assert client.ends["b"]["exitCode"] == 128 + signal.SIGKILL


def test_the_end_of_an_output_is_seen_by_the_process(server: ServerProcess, client: Follower) -> None:
    # Nobody else keeps the input open: what a keeper holds is let go when the server lets it go.
    client.start("p", "cat; echo over", pipeStdin=True)
    crash(server)
    client.call("process/closeStdin", {"processId": "p"})
    client.read_all("p")
    assert client.output("p") == b"over\n"


def test_sessions_keep_their_names_and_times_and_end_in_time() -> None:
    with surviving(settings={"crash_restarts": 10, "detached_session_ttl_s": 1.0}) as server:
        with Follower(server) as client:
            kept = client.session
            client.call("session/keep", {"keepMs": 3_600_000, "name": "work"})
            client.start("p", "sleep 1000", processName="sleeper")
            pid = pid_of(client, "p")
        with server.connect() as peer:
            peer.open_session()
            start(peer, "q", "sleep 1000")
            other = int(peer.call("process/list", {})["processes"][0]["pid"])
            crash(server)
        wait_until(lambda: proc.is_over(other), 20)  # nobody has come back for it
        with Follower(server) as client:
            sessions = client.call("session/list", {})["sessions"]
            (entry,) = [each for each in sessions if each["sessionId"] == kept]
            assert (entry["name"], entry["keepMs"], entry["processes"]) == ("work", 3_600_000, 1)
            named = client.call("session/processes", {})["processes"]
            assert [each["processName"] for each in named if each["sessionId"] == kept] == ["sleeper"]
        assert not proc.is_over(pid)


def test_what_a_command_has_left_in_the_background_lives_on(server: ServerProcess, client: Follower) -> None:
    client.start("p", "setsid sleep 1000 > /dev/null 2>&1 & echo $!")
    client.read_all("p")
    left = int(client.output("p"))
    crash(server)
    assert client.call("process/list", {})["processes"][0]["exitCode"] == 0
    assert not proc.is_over(left)
    os.kill(left, signal.SIGKILL)
    wait_until(lambda: len(proc.children_of(server.pid)) == 1, 20)  # its zygote ends with it


def test_a_start_that_nobody_has_heard_of_is_ended(server: ServerProcess, client: Follower) -> None:
    client.start("first", "sleep 1000")
    (zygote,) = proc.zygotes_of(server_of(server.pid))
    mark = f"MARK_{os.getpid()}"
    with server.connect() as peer:
        session = peer.open_session()
        os.kill(zygote, signal.SIGSTOP)
        try:
            params = start_params("p", "sleep 1000", env={"PATH": "/usr/bin:/bin", "MARK": mark})
            peer.send({"id": 70, "method": "process/start", "params": params})
            peer.send({"id": 71, "method": "process/list", "params": {}})
            crash(server)
        finally:
            os.kill(zygote, signal.SIGCONT)
    with reconnected(server, session) as peer, pytest.raises(RemoteError, match="unknown process id p"):
        peer.call("process/read", {"processId": "p"})
    wait_until(lambda: proc.marked(mark) == [], 20)
    assert client.call("process/terminate", {"processId": "first"}) == {"running": True}


def test_a_zygote_that_dies_after_a_crash_takes_its_processes_with_it(
    server: ServerProcess, client: Follower
) -> None:
    client.start("p", "setsid sleep 1000 & sleep 1000")
    (zygote,) = proc.zygotes_of(server_of(server.pid))
    wait_until(lambda: len(proc.descendants_of(zygote)) >= 3, 20)
    below = proc.descendants_of(zygote)
    crash(server)
    client.read("p")
    os.kill(zygote, signal.SIGKILL)
    client.read_all("p")
    assert client.ends["p"]["exitCode"] == 128 + signal.SIGKILL
    wait_until(lambda: all(map(proc.is_over, below)), 20)


def test_a_zygote_and_its_server_that_are_killed_together_leave_nothing(
    server: ServerProcess, client: Follower
) -> None:
    client.start("p", "setsid sleep 1000 & sleep 1000")
    own = server_of(server.pid)
    (zygote,) = proc.zygotes_of(own)
    wait_until(lambda: len(proc.descendants_of(zygote)) >= 3, 20)
    below = proc.descendants_of(zygote)
    for pid in (own, server.pid):
        os.kill(pid, signal.SIGSTOP)
    for pid in (zygote, own):
        os.kill(pid, signal.SIGKILL)
    server.signal(signal.SIGCONT)
    client.read_all("p")
    assert client.ends["p"]["exitCode"] == 128 + signal.SIGKILL
    wait_until(lambda: all(map(proc.is_over, below)), 20)
    client.start("q", "echo next")
    client.read_all("q")
    assert client.output("q") == b"next\n"


def test_a_session_outlives_kills_without_its_client(server: ServerProcess) -> None:
    with server.connect() as peer:
        session = peer.open_session()
        start(peer, "p", "sleep 1000")
    for _ in range(3):
        before = crash(server)
        server_of(server.pid, before)
        with Follower(server) as other:  # by now it serves
            assert other.session != session
    with reconnected(server, session) as peer:
        assert read(peer, "p")["exited"] is False


def test_a_unix_listener_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with surviving(listen=f"unix://{path}") as server, Follower(server) as client:
        inode = path.stat().st_ino
        client.start("p", "cat", pipeStdin=True)
        crash(server)
        assert client.write("p", b"word", "w") == "accepted"
        client.call("process/closeStdin", {"processId": "p"})
        client.read_all("p")
        assert client.output("p") == b"word"
        assert path.stat().st_ino == inode
    assert not path.exists()


def test_metrics_and_the_audit_log_go_on(tmp_path: Path) -> None:
    from execserver.audit.reading import records, verify

    folder = tmp_path / "audit"
    with surviving("--audit", str(folder), "--metrics", "127.0.0.1:0") as server, Follower(server) as client:
        client.start("p", "sleep 1000")
        crash(server)
        client.call("process/terminate", {"processId": "p"})
        client.read_all("p")
    verify(str(folder))
    events = [record["event"] for record in records(str(folder))]
    assert events.count("begin") == 2, events


def test_nothing_stays_open_for_what_is_over(server: ServerProcess, client: Follower) -> None:
    client.start("first", "true")
    client.read_all("first")
    keeper, own = proc.descriptor_count(server.pid), proc.descriptor_count(server_of(server.pid))
    with server.connect() as peer:
        peer.open_session()
        for number in range(20):
            start(peer, f"p{number}", "cat", pipeStdin=True, tty=number % 2 == 0)
        peer.call("session/keep", {"keepMs": 0})
        assert proc.descriptor_count(server.pid) >= keeper + 100
    wait_until(lambda: proc.descriptor_count(server.pid) <= keeper, 30)
    wait_until(lambda: proc.descriptor_count(server_of(server.pid)) <= own, 30)


def test_what_was_read_for_the_next_server_is_let_go(server: ServerProcess, client: Follower) -> None:
    """Else all output is there twice for as long as that server is: it is in the logs by then."""
    names = [f"p{number}" for number in range(24)]
    for name in names:
        client.start(name, "head -c 1000000 /dev/zero; exec sleep 1000")
    for name in names:
        while len(client.output(name)) < 1_000_000:
            client.read(name)
    before = proc.resident_bytes(server_of(server.pid))
    crash(server)
    client.call("process/list", {})
    own = server_of(server.pid)
    wait_until(lambda: proc.resident_bytes(own) < before + 10_000_000, 20)


def read(peer: Peer, process_id: str) -> Json:
    return peer.call("process/read", {"processId": process_id})


def size_of(found: Json) -> int:
    return sum([len(base64.b64decode(each["chunk"])) for each in found["chunks"]])


def total(found: Json) -> int:
    return size_of(found) + int(found["lostBytes"])


@contextmanager
def reconnected(server: ServerProcess, session: str) -> Iterator[Peer]:
    """Connect to a server that goes on, and resume a session."""
    with server.connect() as peer:
        peer.open_session(resume=session)
        yield peer
