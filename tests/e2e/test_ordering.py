"""In which order one connection is answered, and what holds up nobody."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import Connect
from tests.support.peer import encode
from tests.support.running import outcome, start, start_params, terminate
from tests.support.ws_peer import TEXT, WsPeer, client_frame

BURST = 4096
MAX_WAITING = 256
slow_there = pytest.mark.ours_only("the reference handles one request at a time")


def request(request_id: int, method: str, params: object = None) -> bytes:
    return client_frame(TEXT, encode({"id": request_id, "method": method, "params": params}))


def waiting_read(request_id: int, wait_ms: int, after: int = 0) -> bytes:
    params = {"processId": "p", "afterSeq": after, "waitMs": wait_ms}
    return request(request_id, "process/read", params)


def ids_in_order(peer: WsPeer, count: int) -> list[int]:
    """Return the ids of the next replies."""
    ids: list[int] = []
    while len(ids) < count:
        message = peer.receive()
        assert message is not None
        if "id" in message:
            ids.append(message["id"])
    return ids


def test_requests_pipelined_before_initialized_are_refused_and_later_ones_are_not(connect: Connect) -> None:
    peer = connect()
    texts = [
        b'{"id":1,"method":"initialize","params":{"clientName":"x"}}',
        b'{"id":2,"method":"environment/info"}',
        b'{"id":3,"method":"fs/getMetadata","params":{"path":"file:///"}}',
        b'{"method":"initialized","params":{}}',
        b'{"id":4,"method":"fs/getMetadata","params":{"path":"file:///"}}',
    ]
    peer.send_raw(b"".join(client_frame(TEXT, text) for text in texts))
    answers = [peer.receive() for _ in range(4)]
    assert [answer and answer["id"] for answer in answers] == [1, 2, 3, 4]
    refused = [answer and answer.get("error", {}).get("message") for answer in answers]
    before = "client must send initialized before using"
    assert refused == [None, f"{before} environment info methods", f"{before} filesystem methods", None]


@pytest.mark.ours_only("such a burst blocks the reference for good")
def test_a_burst_of_4096_requests_is_answered_in_order(peer: WsPeer) -> None:
    peer.send_raw(b"".join(request(100 + number, "environment/info") for number in range(BURST)))
    assert ids_in_order(peer, BURST) == list(range(100, 100 + BURST))


def test_different_methods_are_answered_in_order(peer: WsPeer, tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    cycle = [
        ("environment/info", None),
        ("fs/writeFile", {"path": path, "dataBase64": "eA=="}),
        ("no/such", None),
        ("fs/readFile", {"path": path}),
        ("process/read", {"processId": "nobody"}),
        ("fs/getMetadata", {"path": path}),
        ("process/terminate", {"processId": "nobody"}),
        ("fs/remove", {"path": path}),
        ("fs/readFile", {}),
    ]
    requests = [request(number, *cycle[number % len(cycle)]) for number in range(90)]
    peer.send_raw(b"".join(requests))
    assert ids_in_order(peer, 90) == list(range(90))


def test_file_operations_of_one_connection_see_each_other(peer: WsPeer, tmp_path: Path) -> None:
    """A large write goes through a thread; what comes behind it must find the file complete."""
    path = tmp_path / "f"
    data = "eHh4" * 500_000
    peer.send_raw(
        request(1, "fs/writeFile", {"path": str(path), "dataBase64": data})
        + request(2, "fs/getMetadata", {"path": str(path)})
        + request(3, "fs/remove", {"path": str(path)})
    )
    assert ids_in_order(peer, 1) == [1]
    assert peer.take({"id": 2})["result"]["size"] == 1_500_000
    peer.take({"id": 3})
    assert not path.exists()


@slow_there
def test_a_waiting_read_delays_nobody(peer: WsPeer) -> None:
    start(peer, "p", "exec sleep 100")
    begun = time.monotonic()
    peer.send_raw(
        waiting_read(500, 60_000) + b"".join(request(501 + n, "environment/info") for n in range(50))
    )
    assert ids_in_order(peer, 50) == list(range(501, 551))
    assert terminate(peer, "p")
    assert peer.take({"id": 500})["result"]["exited"]
    assert time.monotonic() - begun < 20


@slow_there
def test_a_waiting_http_request_delays_nobody(peer: WsPeer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as web:
        url = f"http://127.0.0.1:{web.getsockname()[1]}/"
        http = {"method": "GET", "url": url, "requestId": "r"}
        peer.send_raw(request(500, "http/request", http) + request(501, "environment/info"))
        assert ids_in_order(peer, 1) == [501]
        web.settimeout(20)
        connection, _ = web.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
            assert peer.take({"id": 500})["result"]["status"] == 204


@slow_there
def test_many_waiting_reads_are_all_woken_by_one_output(peer: WsPeer, tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    start(peer, "p", ["cat", str(go)])
    peer.send_raw(b"".join(waiting_read(1000 + n, 60_000) for n in range(MAX_WAITING)))
    peer.send_raw(request(1, "environment/info"))
    assert ids_in_order(peer, 1) == [1]
    go.write_bytes(b"now")
    assert sorted(ids_in_order(peer, MAX_WAITING)) == list(range(1000, 1000 + MAX_WAITING))


@slow_there
def test_one_waiting_read_too_many_waits_in_line_and_nothing_is_lost(peer: WsPeer, tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    start(peer, "p", ["cat", str(go)])
    peer.send_raw(b"".join(waiting_read(1000 + n, 60_000) for n in range(MAX_WAITING)))
    peer.send_raw(waiting_read(1, 100) + request(2, "environment/info"))
    assert ids_in_order(peer, 2) == [1, 2]
    go.write_bytes(b"now")
    assert sorted(ids_in_order(peer, MAX_WAITING)) == list(range(1000, 1000 + MAX_WAITING))


def test_other_connections_go_on_while_one_waits(connect: Connect, peer: WsPeer) -> None:
    other = connect()
    other.open_session()
    start(peer, "p", "exec sleep 100")
    peer.send_raw(waiting_read(500, 60_000))
    other.call("environment/info")
    terminate(other, "p")
    start(other, "p", "echo x")
    assert outcome(other, "p").stdout == b"x\n"


@pytest.mark.ours_only("there it nearly always does")
def test_the_answer_to_a_start_precedes_every_notification(peer: WsPeer) -> None:
    count = 100
    names = [f"p{number}" for number in range(count)]
    peer.send_raw(
        b"".join(request(n, "process/start", start_params(name, "echo x")) for n, name in enumerate(names))
    )
    answered: set[str] = set()
    closed: set[str] = set()
    while len(closed) < count:
        message = peer.receive()
        assert message is not None
        if "id" in message:
            answered.add(message["result"]["processId"])
            continue
        assert message["params"]["processId"] in answered
        if message["method"] == "process/closed":
            closed.add(message["params"]["processId"])
    assert answered == set(names)


@pytest.mark.ours_only("there they may come in another order")
def test_notifications_of_a_process_come_in_the_order_of_their_numbers(peer: WsPeer) -> None:
    for number in range(40):
        start(peer, f"p{number}", "echo out; echo err >&2; echo out; exit 3")
    for number in range(40):
        result = outcome(peer, f"p{number}")
        assert result.arrival == list(range(1, len(result.arrival) + 1))
        assert (result.stdout, result.stderr, result.exit_code) == (b"out\nout\n", b"err\n", 3)
