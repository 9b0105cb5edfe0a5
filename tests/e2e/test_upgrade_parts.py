"""What goes over an upgrade besides processes, and what cannot: that ends, and its client is told why."""

from __future__ import annotations

import base64
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.client import ExecServerClient, ExecServerClientConnectOptions
from tests.support import proc
from tests.support.certificates import make_authority
from tests.support.greenlets import turns
from tests.support.proxy_settings import proxy_settings
from tests.support.running import outcome, output_until, start, terminate, write
from tests.support.server_process import ServerProcess
from tests.support.upgrades import upgraded
from tests.support.waiting import wait_until
from tests.support.ws_peer import WsPeer

REASON = "the server was upgraded before this was done; what had been done until then stays"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """One server for all, which each of them upgrades."""
    with ServerProcess() as running:
        yield running


@pytest.fixture
def peer(server: ServerProcess) -> Iterator[WsPeer]:
    connection = server.connect()
    connection.open_session()
    yield connection
    connection.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.settimeout(30)
        yield sock


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_forwarded_connections_go_on(server: ServerProcess, peer: WsPeer, listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    peer.call("port/open", {"portId": "out", "host": "127.0.0.1", "port": port})
    listening = peer.call("port/listen", {"portId": "in", "host": "127.0.0.1", "port": 0})
    far, _ = listener.accept()
    with far:
        far.sendall(b"first")
        assert peer.notification("port/bytes")["chunk"] == encoded(b"first")
        upgraded(server)
        peer.call("port/data", {"portId": "out", "offset": 0, "chunk": encoded(b"there"), "eof": False})
        assert far.recv(10) == b"there"
        far.sendall(b"second")
        told = peer.notification("port/bytes")
        assert (told["offset"], told["chunk"]) == (5, encoded(b"second"))
        address = listening["address"]
        with socket.create_connection((address["host"], address["port"]), 30):
            assert peer.notification("port/accepted")["portId"] == "in/1"


def test_who_follows_a_process_of_another_session_goes_on(server: ServerProcess, peer: WsPeer) -> None:
    with server.connect() as other:
        session = other.open_session()
        other.call("session/keep", {"keepMs": 60_000, "name": "seen"})
        start(other, "p", "cat", pipeStdin=True)
        peer.call("process/watch", {"sessionId": session, "processId": "p", "watchId": "w", "take": True})
        upgraded(server)
        params = {"processId": "w", "chunk": encoded(b"line\n"), "writeId": "1"}
        assert peer.call("process/write", params)["status"] == "accepted"
        assert peer.notification("process/taken") == {"processId": "w", "writer": True}
        assert other.notification("process/taken") == {"processId": "p", "writer": False}
        assert output_until(peer, "w", b"line\n")
        assert output_until(other, "p", b"line\n")
        terminate(other, "p")
        assert peer.notification("process/exited")["exitCode"] == 137


def test_output_on_disk_is_read_behind_an_upgrade(server: ServerProcess, peer: WsPeer) -> None:
    peer.call("session/keep", {"keepMs": 60_000, "name": "spooled"})
    start(peer, "p", "yes 123456789 | head -c 4000000")
    assert outcome(peer, "p").exit_code == 0
    upgraded(server)
    data, after = b"", 0
    while len(data) < 4_000_000:
        page = peer.call("process/log", {"processId": "p", "afterSeq": after})
        data += b"".join(base64.b64decode(chunk["chunk"]) for chunk in page["chunks"])
        assert page["lostBytes"] == 0
        after = page["nextSeq"] - 1
    assert data == b"123456789\n" * 400_000


def test_the_network_proxy_of_a_process_serves_on_at_its_ports(
    server: ServerProcess, peer: WsPeer, listener: socket.socket
) -> None:
    config = proxy_settings("127.0.0.1", enableSocks5=True, allowLocalBinding=True)
    code = (
        "import os, socket, urllib.parse;"
        "place = urllib.parse.urlsplit(os.environ['HTTP_PROXY']);"
        "input();"
        "sock = socket.create_connection((place.hostname, place.port));"
        f"sock.sendall(b'CONNECT 127.0.0.1:{listener.getsockname()[1]} HTTP/1.1\\r\\n\\r\\n');"
        "print(sock.recv(12).decode())"
    )
    words = ["/usr/bin/python3", "-I", "-c", code]
    start(peer, "p", words, pipeStdin=True, networkProxy={"proxy": config})
    for _ in range(2):
        upgraded(server)
    assert write(peer, "p", b"go\n", "w") == "accepted"
    assert peer.notification("network/policyDecision")["decision"] == "allow"
    assert outcome(peer, "p").stdout == b"HTTP/1.1 200\n"
    listener.accept()[0].close()


def test_limits_hold_on_and_say_why_a_process_ended(server: ServerProcess, peer: WsPeer) -> None:
    start(peer, "short", "sleep 100 & echo $!; wait", limits={"wallMs": 6_000})
    left = int(output_until(peer, "short", b"\n"))
    start(peer, "told", "kill -9 $$", limits={"fileBytes": 1_000_000})
    assert peer.notification("process/exited")["ended"]["cause"] == "signal"
    for _ in range(2):
        upgraded(server)
    start(peer, "next", "exit 3", limits={"wallMs": 60_000})  # its group is none of those before
    ended: dict[str, tuple[int, str | None]] = {}
    while len(ended) < 2:
        told = peer.notification("process/exited")
        ended[told["processId"]] = (told["exitCode"], (told.get("ended") or {}).get("cause"))
    assert ended == {"short": (137, "deadline"), "next": (3, None)}
    proc.wait_over(left)
    listed = {each["processId"]: each for each in peer.call("process/list")["processes"]}
    assert listed["told"]["ended"]["cause"] == "signal"


def test_a_control_group_that_somebody_has_removed_ends_nothing(server: ServerProcess, peer: WsPeer) -> None:
    start(peer, "on", "cat", pipeStdin=True)
    start(
        peer,
        "left",
        "grep ^0: /proc/self/cgroup; setsid sleep 300 > /dev/null 2>&1 & echo $!; echo on",
        limits={"wallMs": 60_000},
    )
    group, pid, _ = outcome(peer, "left").stdout.decode().split()
    if "execserver." not in group:
        pytest.skip("no control groups here")
    folders = [each for each in Path("/sys/fs/cgroup").rglob(Path(group).name) if group[3:] in str(each)]
    os.kill(int(pid), signal.SIGKILL)
    session = folders[0].parent
    wait_until(lambda: "populated 0" in (session / "cgroup.events").read_text(), 20)
    folders[0].rmdir()
    session.rmdir()
    upgraded(server)
    assert write(peer, "on", b"still here\n", "w") == "accepted"
    assert output_until(peer, "on", b"\n") == b"still here\n"
    start(peer, "next", "exit 3", limits={"wallMs": 60_000})
    assert outcome(peer, "next").exit_code == 3


def test_a_watch_of_files_ends_and_says_why(server: ServerProcess, peer: WsPeer, tmp_path: Path) -> None:
    peer.call("fs/watch", {"watchId": "w", "path": f"file://{tmp_path}", "recursive": True})
    upgraded(server)
    told = peer.notification("fs/changes")
    assert (told["overflow"], told["ended"]) == (True, True)
    assert told["reason"] == "the server was upgraded, and watches no folder any more: look, and watch again"
    (tmp_path / "file").touch()
    again = peer.call("fs/watch", {"watchId": "v", "path": f"file://{tmp_path}", "recursive": True})
    assert again["folders"] == 1


def test_requests_to_others_end_and_say_why(
    server: ServerProcess, peer: WsPeer, listener: socket.socket
) -> None:
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    asked = {"method": "GET", "url": url, "headers": []}
    peer.send({"id": 70, "method": "http/request", "params": {**asked, "requestId": "a"}})
    silent, _ = listener.accept()
    streamed = {**asked, "requestId": "b", "streamResponse": True}
    peer.send({"id": 71, "method": "http/request", "params": streamed})
    streaming, _ = listener.accept()
    with silent, streaming:
        streaming.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nsome")
        assert peer.take({"id": 71})["result"]["status"] == 200
        assert peer.notification("http/request/bodyDelta")["deltaBase64"] == encoded(b"some")
        upgraded(server)
        assert peer.take({"id": 70})["error"] == {"code": -32603, "message": REASON}
        last = peer.notification("http/request/bodyDelta")
        assert (last["seq"], last["done"], last["error"]) == (2, True, REASON)


def test_an_answer_of_which_only_a_part_is_sent_ends_its_connection(
    server: ServerProcess, tmp_path: Path
) -> None:
    with open(tmp_path / "large", "wb") as file:
        file.truncate(200_000_000)
    slow = server.connect()
    session = slow.open_session()
    start(slow, "p", "cat", pipeStdin=True)
    slow.send({"id": 70, "method": "fs/readFile", "params": {"path": f"file://{tmp_path}/large"}})
    slow.socket.recv(1)  # it has begun
    upgraded(server)
    slow.close()
    with server.connect() as again:
        assert again.open_session(resume=session) == session
        assert terminate(again, "p")


def test_a_connection_with_tls_is_closed_and_its_session_resumed(tmp_path: Path) -> None:
    authority = make_authority()
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    (tmp_path / "both.pem").write_bytes(authority.issue("127.0.0.1"))
    both = str(tmp_path / "both.pem")
    options = ("--tls-cert", both, "--tls-key", both)
    chosen = ExecServerClientConnectOptions(ca_file=str(tmp_path / "ca.pem"))
    with (
        ServerProcess(listen="wss://127.0.0.1:0", options=options) as server,
        ExecServerClient.connect(server.url, chosen) as client,
    ):
        session = client.session_id
        process = client.start(["cat"], pipe_stdin=True)
        upgraded(server)
        process.write(b"still here\n")
        process.close_stdin()
        assert process.communicate(timeout=30).stdout == b"still here\n"
        assert client.session_id == session
    turns(3)  # in which gevent closes the client's socket


def test_nothing_is_said_to_a_client_that_has_not_said_anything(server: ServerProcess) -> None:
    """A connection whose upgrade is still to come goes along, too."""
    parts = server.url.removeprefix("ws://").split(":")
    with socket.create_connection((parts[0], int(parts[1])), 30) as silent:
        upgraded(server)
        silent.sendall(f"GET /readyz HTTP/1.1\r\nHost: {parts[0]}\r\n\r\n".encode())
        assert silent.recv(100).startswith(b"HTTP/1.1 200 OK\r\n")
