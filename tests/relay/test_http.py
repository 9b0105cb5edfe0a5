"""Requests that two readers would take apart differently, and who may stay how long before an upgrade."""

from __future__ import annotations

import re
import select
import socket
import ssl
from pathlib import Path

import gevent
import pytest

from execserver.relay.admission import Admission
from execserver.relay.api import Request, Response, Shown
from execserver.relay.byte_streams import Buffers, PlainByteStream
from execserver.relay.http import HttpConnection
from execserver.relay.limits import Limits
from tests.support.certificates import make_authority
from tests.support.relay_process import ENVIRONMENT, RelayProcess
from tests.support.waiting import wait_until

WAIT = 20.0
READY = b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /none HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
FULL = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n"


def connect(relay: RelayProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", relay.port), WAIT)


def rest_of(sock: socket.socket) -> bytes:
    """Return all that comes until the end."""
    received = b""
    try:
        while piece := sock.recv(65_536):
            received += piece
    except ConnectionError:
        pass
    return received


def talk(relay: RelayProcess, data: bytes) -> bytes:
    with connect(relay) as sock:
        sock.sendall(data)
        return rest_of(sock)


@pytest.mark.parametrize(
    "data",
    [
        POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n0\r\n\r\n",
        POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        POST + b"Content-Length: 2, 2\r\n\r\n{}",
        POST + b"Content-Length: +2\r\n\r\n{}",
        POST + b"Content-Length: 0x2\r\n\r\n{}",
        POST + b"Content-Length: 2 2\r\n\r\n{}",
        POST + b"Content-Length:\r\n\r\n{}",
        POST + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n{}",
        POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /none HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /readyz HTTP/1.1\nHost: x\n\n",
        b"GET /readyz HTTP/1.1\r\nHost: x\n\r\n",
        b"GET /readyz HTTP/1.1\r\nHost: x\r\nA: b\nContent-Length: 5\r\n\r\n",
        b"GET /readyz HTTP/1.1\r\nHost: x\r\nA: b\rC: d\r\n\r\n",
        b"GET /readyz HTTP/1.1\r\nHost: x\r\nA: b\r\n folded\r\n\r\n",
        b"GET /readyz HTTP/1.1\r\nHost: x\r\nA: \0\r\n\r\n",
        b"GET /readyz HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n",
        b"GET http://127.0.0.1/readyz HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /readyz\tHTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        CHUNKED + b"2;a=b\r\n{}\r\n0\r\n\r\n",
        CHUNKED + b"2\r\n{}\r\n0\r\nContent-Length: 5\r\n\r\n",
        CHUNKED + b"2\n{}\r\n0\r\n\r\n",
        CHUNKED + b"2\r\n{}\r\n0\r\n\n",
        CHUNKED + b"-2\r\n{}\r\n0\r\n\r\n",
        CHUNKED + b"2\r\n{}AA0\r\n\r\n",
    ],
)
def test_what_has_two_meanings_is_refused_and_ended(relay: RelayProcess, data: bytes) -> None:
    answer = talk(relay, data + READY)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"\r\nconnection: close\r\n" in answer.lower()
    assert answer.count(b"HTTP/1.1") == 1


def test_a_body_in_plain_chunks_and_what_follows_it_are_taken(relay: RelayProcess) -> None:
    last = b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = talk(relay, CHUNKED + b"2\r\n{}\r\nA\r\n0123456789\r\n0\r\n\r\n" + last)
    assert re.findall(rb"HTTP/1.1 (\d+) ", answer) == [b"404", b"200"]


def test_chunks_cost_no_more_than_their_content_allows(relay: RelayProcess) -> None:
    assert talk(relay, CHUNKED + b"1\r\nx\r\n" * 40_000).startswith(b"HTTP/1.1 413 ")


def test_an_upgrade_has_no_body(relay: RelayProcess) -> None:
    head = (
        "GET /rendezvous/a?token=h-x HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        "Content-Length: 2\r\n\r\n{}"
    )
    with connect(relay) as sock:
        sock.sendall(head.encode())
        assert sock.recv(65_536).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "127.0.0.1:9"}, 200),
        ({"host": "localhost"}, 200),
        ({"host": "LocalHost:80"}, 200),
        ({"host": "[::1]:80"}, 200),
        ({"host": "127.8.9.1"}, 200),
        ({"host": "rebound.example:80"}, 403),
        ({"host": "localhost.example"}, 403),
        ({"host": "127.0.0.1.example"}, 403),
        ({"host": "10.0.0.1"}, 403),
        ({"host": "user@localhost"}, 403),
        ({"host": ""}, 403),
        ({"x-forwarded-for": "10.0.0.1"}, 403),
        ({"forwarded": "for=10.0.0.1"}, 403),
        ({"via": "1.1 proxy"}, 403),
    ],
)
def test_metrics_are_told_to_this_machine_by_its_own_names(
    relay: RelayProcess, headers: dict[str, str], status: int
) -> None:
    assert relay.request("GET", "/metrics", headers=headers)[0] == status


def test_public_metrics_are_told_by_any_name() -> None:
    with RelayProcess("--public-metrics") as relay:
        assert relay.request("GET", "/metrics", headers={"host": "relay.example"})[0] == 200


def test_silent_strangers_lock_nobody_out() -> None:
    limits = {"unauthenticated_s": 60, "token_check_s": 0.1}
    with RelayProcess("--max-connections", "8", limits=limits) as relay:
        token = relay.token()
        silent = [connect(relay) for _ in range(200)]
        try:
            with relay.executor(token) as executor, relay.harness(token):
                executor.send_message(b"nonsense")
                # The oldest had to go, and were told so; those that fit into the strangers' share are here.
                assert rest_of(silent[0]).startswith(FULL)
                assert relay.request("GET", "/readyz")[0] == 200
            silent[-1].sendall(READY)
            assert silent[-1].recv(1000).startswith(b"HTTP/1.1 200 ")
        finally:
            for sock in silent:
                sock.close()


def test_where_all_places_are_taken_one_is_told_when_to_come_again() -> None:
    with RelayProcess("--max-connections", "2") as relay:
        token = relay.token()
        with relay.executor(token):
            url = relay.grant(token)["url"]
            assert url
            with relay.harness(token):
                status, headers, _ = relay.request(
                    "POST",
                    f"/cloud/environment/{ENVIRONMENT}/validate",
                    b"{}",
                    {"authorization": f"Bearer {token}"},
                )
                assert (status, headers["retry-after"], headers["connection"]) == (503, "1", "close")
                assert relay.request("GET", "/readyz")[0] == 200
        wait_until(lambda: relay.call("x", "validate", {}, token)[0] == 403)


def test_an_answer_that_there_is_no_place_is_not_lost_while_the_body_still_comes() -> None:
    """A client whose sending fails does not look for the answer, and an executor would end."""
    with RelayProcess("--max-connections", "2") as relay:
        token = relay.token()
        with relay.executor(token), relay.harness(token), connect(relay) as sock:
            sock.sendall(
                f"POST /cloud/environment/{ENVIRONMENT}/register HTTP/1.1\r\nHost: x\r\n"
                f"Authorization: Bearer {token}\r\nContent-Length: 2000\r\n\r\n".encode()
            )
            answer = sock.recv(65_536)
            assert answer.startswith(b"HTTP/1.1 503 ")
            for _ in range(4):
                sock.sendall(b"x" * 500)
            sock.shutdown(socket.SHUT_WR)
            assert sock.recv(65_536) == b""


def test_a_peer_that_never_stops_is_not_read_for_ever() -> None:
    with RelayProcess() as relay, connect(relay) as sock:
        sock.sendall(b"nonsense\r\n\r\n")
        assert sock.recv(65_536).startswith(b"HTTP/1.1 400 ")
        endless = bytes(64 << 20)
        with pytest.raises(OSError):
            sock.sendall(endless)


def test_one_that_makes_room_is_told_so_though_its_request_is_here() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname(), WAIT)
        sock, _ = listening.accept()
    sock.setblocking(False)
    admission = Admission(10, lambda: 0, lambda token_id: 0)
    connection = HttpConnection(PlainByteStream(sock), "peer", False, Limits(), admission)
    serving = gevent.spawn(connection.serve, Always())
    gevent.sleep(0)  # it waits for a request now
    client.sendall(READY)
    assert admission.make_room()
    serving.join(WAIT)
    sock.close()
    with client:
        assert client.recv(1000).startswith(FULL)
        assert client.recv(1000) == b""  # and no reset


def test_a_token_buys_time_and_nothing_else_does() -> None:
    limits = {"unauthenticated_s": 2.0, "keep_alive_s": 30, "request_timeout_s": 30, "token_check_s": 0.1}
    with RelayProcess(limits=limits) as short:
        good = short.token()
        call = f"POST /cloud/environment/{ENVIRONMENT}/validate HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"
        with connect(short) as known, connect(short) as stranger, connect(short) as silent:
            known.sendall(f"{call}Authorization: Bearer {good}\r\n\r\n{{".encode())
            stranger.sendall(f"{call}Authorization: Bearer wrong\r\n\r\n{{".encode())
            assert rest_of(stranger) == b""
            assert rest_of(silent) == b""
            known.sendall(b"}")
            assert known.recv(65_536).startswith(b"HTTP/1.1 400 ")
            # It may rest now; one that was only asked whether all is well may not for long.
            with connect(short) as asking:
                asking.sendall(READY)
                assert b" 200 " in asking.recv(65_536)
                assert rest_of(asking) == b""
            known.sendall(READY)
            assert b" 200 " in known.recv(65_536)


def test_a_tls_handshake_that_never_ends_is_a_stranger(tmp_path: Path) -> None:
    authority = make_authority()
    pem = tmp_path / "relay.pem"
    pem.write_bytes(authority.issue("127.0.0.1"))
    words = ("--tls-cert", str(pem), "--tls-key", str(pem), "--max-connections", "4")
    limits = {"unauthenticated_s": 60, "token_check_s": 0.1}
    with RelayProcess(*words, listen="https://127.0.0.1:0", limits=limits) as relay:
        relay.tls = ssl.create_default_context(cadata=authority.pem.decode())
        half = [connect(relay) for _ in range(100)]
        try:
            for sock in half:
                sock.sendall(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a greeting
            assert relay.request("GET", "/readyz")[0] == 200
            assert rest_of(half[0]) == b""  # no answer can be given before TLS is made
            assert select.select([half[-1]], [], [], 0) == ([], [], [])
        finally:
            for sock in half:
                sock.close()


class FloodingWire:
    """A peer that always has another request, and takes every answer at once."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.reads = 0

    @property
    def pending(self) -> bool:
        return False

    def handshake(self) -> None:
        pass

    def read(self, view: memoryview) -> int:
        self.reads += 1
        view[: len(READY)] = READY
        return len(READY)

    def write(self, buffers: Buffers) -> int:
        return sum(map(len, buffers))


class Always:
    """A service that knows nobody and always answers the same."""

    def recognize(self, request: Request) -> Shown:
        return Shown(None)

    def answer(self, request: Request, shown: Shown) -> Response:
        return Response(200)


def test_a_flood_of_requests_leaves_others_their_turns() -> None:
    with socket.socket() as sock:
        stream = FloodingWire(sock)
        connection = HttpConnection(
            stream, "peer", False, Limits(), Admission(10, lambda: 0, lambda token_id: 0)
        )
        greenlet = gevent.spawn(connection.serve, Always())
        reads = []
        with gevent.Timeout(20):
            for _ in range(5):
                gevent.sleep(0)  # our turn ends, the flood's begins
                reads.append(stream.reads)
        greenlet.kill()
        assert reads[0] < reads[-1] < 10
