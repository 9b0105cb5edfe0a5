"""A running server becomes another program, and nobody who is connected notices: `execserver upgrade`."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import signal
import socket
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.audit.reading import records, verify
from execserver.audit.recording import read
from tests.support import proc
from tests.support.peer import Peer
from tests.support.running import outcome, run, start, terminate, write
from tests.support.server_process import ServerProcess, base_environment
from tests.support.upgrades import upgraded
from tests.support.waiting import wait_until
from tests.support.ws_peer import TEXT, WsPeer, client_frame

LINES = 60_000
COUNT = f'i=0; while [ $i -lt {LINES} ]; do echo "$i {"x" * 20}"; i=$((i+1)); done'
COUNTED = b"".join(b"%d %b\n" % (number, b"x" * 20) for number in range(LINES))


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with ServerProcess() as running:
        yield running


@pytest.fixture
def peer(server: ServerProcess) -> Iterator[WsPeer]:
    connection = server.connect()
    connection.open_session()
    yield connection
    connection.close()


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_streams_go_on_over_several_upgrades_and_lose_nothing(server: ServerProcess, peer: WsPeer) -> None:
    descriptors = proc.descriptor_count(server.pid)
    start(peer, "pipe", f"{COUNT}; read x; echo got $x", pipeStdin=True)
    start(peer, "pty", f"stty -onlcr; {COUNT}", tty=True)
    for _ in range(3):
        upgraded(server)
    assert write(peer, "pipe", b"word\n", "w") == "accepted"
    outcomes = [outcome(peer, "pipe"), outcome(peer, "pty")]
    assert [each.complete for each in outcomes] == [True, True]  # each number once
    assert sha(outcomes[0].stdout) == sha(COUNTED + b"got word\n")
    assert sha(outcomes[1].pty) == sha(COUNTED)
    assert [each.exit_code for each in outcomes] == [0, 0]
    # The zygotes of the programs before are gone with their last children, and nothing is left open.
    wait_until(lambda: len(proc.children_of(server.pid)) == 1, 20)
    wait_until(lambda: proc.descriptor_count(server.pid) <= descriptors, 20)


def test_what_a_client_waits_for_and_what_it_has_begun_to_send_goes_on(
    server: ServerProcess, peer: WsPeer, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    peer.call("fs/open", {"handleId": "h", "path": f"file://{tmp_path}/file"})
    start(peer, "cat", "cat", pipeStdin=True)
    # A waiting read; a frame of which half is sent; a message of which one fragment is sent.
    peer.send({"id": 70, "method": "process/read", "params": {"processId": "cat", "waitMs": 50_000}})
    text = b'{"id":71,"method":"fs/readBlock","params":{"handleId":"h","offset":2,"len":3}}'
    frame = client_frame(TEXT, text[:40], final=False) + client_frame(0, text[40:])
    peer.send_raw(frame[:60])
    upgraded(server)
    peer.send_raw(frame[60:])
    assert peer.take({"id": 71})["result"]["chunk"] == base64.b64encode(b"234").decode()
    assert write(peer, "cat", b"line\n", "w") == "accepted"
    chunks = peer.take({"id": 70})["result"]["chunks"]
    assert [base64.b64decode(chunk["chunk"]) for chunk in chunks] == [b"line\n"]
    upgraded(server)
    assert write(peer, "cat", b"line\n", "w") == "accepted"  # the same write: it is not written again
    peer.call("process/closeStdin", {"processId": "cat"})
    assert outcome(peer, "cat").stdout == b"line\n"


def test_a_long_poll_waits_no_longer_than_it_was_to(server: ServerProcess, peer: WsPeer) -> None:
    start(peer, "p", "sleep 100")
    peer.send({"id": 70, "method": "process/read", "params": {"processId": "p", "waitMs": 1}})
    peer.take({"id": 70})
    peer.send({"id": 71, "method": "process/read", "params": {"processId": "p", "waitMs": 2_000}})
    upgraded(server)
    assert peer.take({"id": 71}, 20)["result"]["chunks"] == []


def test_input_that_nobody_has_read_yet_is_written_in_order(server: ServerProcess, peer: WsPeer) -> None:
    start(peer, "p", "sleep 3; sha256sum", pipeStdin=True)
    pieces = [bytes([number]) * 100_000 for number in range(60)]  # beyond what may be queued
    for number, piece in enumerate(pieces):
        chunk = base64.b64encode(piece).decode()
        params = {"processId": "p", "chunk": chunk, "writeId": str(number)}
        peer.send({"id": 100 + number, "method": "process/write", "params": params})
    peer.take({"id": 110})
    upgraded(server)
    for number in range(60):
        assert peer.take({"id": 100 + number})["result"]["status"] == "accepted" if number != 10 else True
    peer.call("process/closeStdin", {"processId": "p"})
    assert outcome(peer, "p").stdout.split()[0].decode() == sha(b"".join(pieces))


def test_what_a_command_has_left_in_the_background_lives_on(server: ServerProcess, peer: WsPeer) -> None:
    script = "setsid sleep 1000 > /dev/null 2>&1 & echo $!"
    left = int(run(peer, "p", script).stdout)
    upgraded(server)
    upgraded(server)
    assert not proc.is_over(left)
    os.kill(left, signal.SIGKILL)
    wait_until(lambda: len(proc.children_of(server.pid)) == 1, 20)  # its zygote ends with it


def test_detached_and_kept_sessions_are_found_again(server: ServerProcess) -> None:
    first = server.connect()
    session = first.open_session()
    start(first, "p", "echo before; sleep 100")
    first.take({"method": "process/output"})
    first.call("session/keep", {"keepMs": 3_600_000, "name": "work"})
    first.close()
    with server.connect() as other:
        other.open_session()
        wait_until(lambda: not listed(other)[session]["attached"], 20)
        upgraded(server)
        entry = listed(other)[session]
        assert (entry["name"], entry["keepMs"], entry["processes"]) == ("work", 3_600_000, 1)
    with server.connect() as again:
        assert again.open_session(resume=session) == session
        found = again.call("process/read", {"processId": "p"})
        assert base64.b64decode(found["chunks"][0]["chunk"]) == b"before\n"
        assert terminate(again, "p")
        assert again.notification("process/exited")["exitCode"] == 137


def listed(peer: Peer) -> dict[str, dict[str, object]]:
    return {entry["sessionId"]: entry for entry in peer.call("session/list")["sessions"]}


def test_a_unix_socket_stays_and_goes_with_the_server() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        path = Path(folder, "s")
        with ServerProcess(listen=f"unix://{path}") as server:
            with server.connect() as peer:
                peer.open_session()
                upgraded(server)
                assert run(peer, "p", "echo here").stdout == b"here\n"
            with server.connect() as further:
                further.open_session()
        assert not path.exists()


def test_sighup_upgrades_where_that_was_asked_for() -> None:
    options = ("--upgrade-on-hup", "--log-level", "info")
    with ServerProcess(options=options) as server, server.connect() as peer:
        peer.open_session()
        start(peer, "p", "cat", pipeStdin=True)
        for times in (1, 2):
            os.kill(server.pid, signal.SIGHUP)
            wait_until(lambda: server.errors().count("upgraded from") == times, 30)  # noqa: B023
        write(peer, "p", b"still\n", "w")
        peer.call("process/closeStdin", {"processId": "p"})
        assert outcome(peer, "p").stdout == b"still\n"


def test_an_upgrade_is_in_the_audit_log_whose_chain_goes_on(tmp_path: Path) -> None:
    folder = str(tmp_path / "audit")
    with ServerProcess(options=("--audit", folder)) as server, server.connect() as peer:
        peer.open_session()
        start(peer, "p", "sleep 100")
        upgraded(server)
        terminate(peer, "p")
        outcome(peer, "p")
    found = [(record["event"], record.get("upgraded")) for record in records(folder)]
    assert found[:3] == [("begin", None), ("session", None), ("start", None)]
    assert found[3:5] == [("upgrade", None), ("begin", True)]
    assert sorted(found[5:]) == [("end", None), ("exit", None), ("signal", None)]
    (record,) = [record for record in records(folder) if record["event"] == "upgrade"]
    assert re.fullmatch(rf"pid \d+, user {os.geteuid()}", str(record["by"]))
    assert verify(folder, None).torn == 0


def test_a_recording_goes_on_in_its_file(tmp_path: Path) -> None:
    folder = str(tmp_path / "audit")
    with ServerProcess(options=("--audit", folder)) as server, server.connect() as peer:
        peer.open_session()
        start(peer, "p", "echo before; read x; echo behind", pipeStdin=True, record="all")
        peer.take({"method": "process/output"})
        upgraded(server)
        write(peer, "p", b"typed\n", "w")
        peer.take({"method": "process/closed"})
    _, chunks = read(folder, "p")
    found = [(code, data) for _, code, data in chunks]
    assert sorted(found[1:3]) == [(b"i", b"typed\n"), (b"o", b"behind\n")]
    assert (found[0], found[3:]) == ((b"o", b"before\n"), [(b"x", b"0")])


def test_metrics_are_served_on_at_their_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with ServerProcess(options=("--metrics", f"127.0.0.1:{port}")) as server, server.connect() as peer:
        peer.open_session()
        start(peer, "p", "sleep 100")
        upgraded(server)
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20).read().decode()
    assert "\nexec_server_connections_active 1\n" in page
    assert "\nexec_server_processes_active 1\n" in page


def test_the_service_manager_is_told_of_the_reload_and_of_its_end() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0execserver-test-{os.getpid()}")
        manager.settimeout(30)
        env = base_environment() | {"NOTIFY_SOCKET": f"@execserver-test-{os.getpid()}"}
        with ServerProcess(env=env) as server:
            assert manager.recv(100) == b"READY=1"
            upgraded(server)
            assert re.fullmatch(rb"RELOADING=1\nMONOTONIC_USEC=\d+", manager.recv(100))
            assert manager.recv(100) == b"READY=1"


def test_processes_end_with_a_server_that_was_upgraded() -> None:
    with ServerProcess() as server, server.connect() as peer:
        peer.open_session()
        script = "trap '' TERM; echo $$; sleep 1000 & wait"
        start(peer, "p", script)
        pid = int(base64.b64decode(peer.notification("process/output")["chunk"]))
        upgraded(server)
        assert not proc.is_over(pid)
    proc.wait_over(pid)


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_two_hundred_upgrades_under_streams(server: ServerProcess, peer: WsPeer) -> None:
    many = 4_000_000
    count = f'i=0; while [ $i -lt {many} ]; do echo "$i"; i=$((i+1)); [ -e "$STOP" ] && break; done; echo end'
    with tempfile.TemporaryDirectory() as folder:
        stop = Path(folder, "stop")
        env = {"PATH": "/usr/bin:/bin", "STOP": str(stop)}
        start(peer, "pipe", count, env=env)
        start(peer, "pty", f"stty -onlcr; {count}", tty=True, env=env)
        for _ in range(200):
            upgraded(server)
        stop.touch()
        for process_id in ("pipe", "pty"):
            found = outcome(peer, process_id)
            *numbers, last = found.output("pty" if process_id == "pty" else "stdout").split(b"\n")[:-1]
            assert (found.complete, last) == (True, b"end")
            wanted = b"".join(b"%d\n" % number for number in range(len(numbers)))
            assert sha(b"".join(number + b"\n" for number in numbers)) == sha(wanted)
