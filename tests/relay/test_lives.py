"""What ends at a relay is freed at once: no connection, stream or request waits for the garbage collector."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent import socket
from gevent.ssl import SSLContext

from execserver.listen_url import WsListen
from execserver.relay.api import Api
from execserver.relay.limits import Limits
from execserver.relay.listener import RelayListener, bind
from execserver.relay.metrics import Metrics
from execserver.relay.registry import Registry
from execserver.relay.rendezvous import Rendezvous
from execserver.relay.state import MemoryState
from execserver.relay.tokens import TokenBook, create
from execserver.relay.wires import server_context
from execserver.settings import Settings
from execserver.wire.relay_frames import (
    RESET_HARNESS_LOST,
    Body,
    Data,
    Handshake,
    RelayFrame,
    Reset,
    Resume,
    decode_frame,
    encode_frame,
)
from tests.conftest import LONG
from tests.support.certificates import make_authority
from tests.support.greenlets import turns
from tests.support.lives import assert_freed
from tests.support.relay_process import key_object, masked_frame
from tests.support.waiting import wait_until

LIVES = 1000 if LONG else 60
NAME = "box-1"
LIMITS = Limits(calls_per_s=1_000_000, grants=4, resume_grace_s=0.02, close_timeout_s=0.5)


class End:
    """One websocket of an executor or a harness; every read gives the relay its turn."""

    def __init__(self, port: int, url: str) -> None:
        self.sock = connected(port)
        path = url[url.index("/rendezvous") :]
        self.sock.sendall(
            f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
        )
        self.received = b""
        while b"\r\n\r\n" not in self.received:
            self.fill()
        head, _, self.received = self.received.partition(b"\r\n\r\n")
        assert b" 101 " in head, head

    def fill(self) -> None:
        data = self.sock.recv(1 << 18)
        assert data, "the relay hung up"
        self.received += data

    def send(self, stream_id: str, body: Body) -> None:
        self.sock.sendall(masked_frame(2, encode_frame(RelayFrame(stream_id, body))))

    def receive(self) -> Body:
        """Return what the next frame says."""
        while True:
            head, size = 2, self.received[1] if len(self.received) > 1 else 0
            if size >= 126:
                wide = 2 if size == 126 else 8
                head, size = 2 + wide, int.from_bytes(self.received[2 : 2 + wide], "big")
            if len(self.received) >= max(2, head + size):
                message, self.received = self.received[head : head + size], self.received[head + size :]
                return decode_frame(message).body
            self.fill()

    def leave(self) -> None:
        """Say goodbye, and wait for the relay's."""
        self.sock.sendall(masked_frame(8, b"\x03\xe8"))
        while self.sock.recv(4096):
            pass
        self.sock.close()

    def drop(self) -> None:
        self.sock.close()


def connected(port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.settimeout(10)
    sock.connect(("127.0.0.1", port))
    return sock


class Stage:
    """A relay in this process, and those who come to it."""

    def __init__(self, folder: Path, limits: Limits = LIMITS) -> None:
        token_file = str(folder / "tokens.json")
        _, self.token = create(token_file, NAME, "both")
        book, state, metrics = TokenBook(token_file), MemoryState(), Metrics()
        self.rendezvous = Rendezvous(state, book, limits, metrics, time.time, 30.0)
        registry = Registry(state, self.rendezvous, limits, metrics, time.time)
        sock = bind(WsListen("127.0.0.1", 0), Settings())
        self.port = int(sock.getsockname()[1])
        base = f"ws://127.0.0.1:{self.port}"
        api = Api(registry, self.rendezvous, book, metrics, base=base, fixed_base=True, public_metrics=False)
        self.listener = RelayListener(sock, limits, api.answer, self.rendezvous.attach)
        self.listener.links = self.rendezvous.count_links
        self.listener.start()

    def call(self, name: str, body: object) -> Any:
        """Make a registry call on a connection of its own."""
        sock = connected(self.port)
        data = json.dumps(body).encode()
        sock.sendall(
            f"POST /cloud/environment/{NAME}/{name} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            f"Authorization: Bearer {self.token}\r\nContent-Length: {len(data)}\r\n\r\n".encode()
            + data
        )
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
        sock.close()
        return json.loads(answer.partition(b"\r\n\r\n")[2])

    def executor(self) -> End:
        body = {"security_profile": "noise_hybrid_ik_v1", "executor_public_key": key_object(0)}
        return End(self.port, self.call("register", body)["url"])

    def harness(self, seed: int = 1000) -> End:
        return End(self.port, self.call("connect", {"harness_public_key": key_object(seed)})["url"])

    def gauge(self, name: str) -> float:
        """Return a figure of the metrics page."""
        return self.rendezvous.gauges()[name][1]

    def close(self) -> None:
        self.rendezvous.end()
        self.listener.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()
    turns()


def test_a_registry_call(stage: Stage) -> None:
    with_executor = stage.executor()

    def life(number: int) -> None:
        assert "url" in stage.call("connect", {"harness_public_key": key_object(1)})
        assert stage.call("validate", {})["error"]["code"] == "invalid_request"
        assert stage.call("nothing", {})["error"]["code"] == "not_found"

    assert_freed(life, LIVES)
    with_executor.drop()


def test_rubbish_and_a_connection_that_says_nothing(stage: Stage) -> None:
    def life(number: int) -> None:
        sock = connected(stage.port)
        if number % 2:
            sock.sendall(b"rubbish\r\n\r\n")
            sock.recv(4096)
        sock.close()

    assert_freed(life, LIVES)


def test_a_request_that_takes_too_long(tmp_path: Path) -> None:
    stage = Stage(tmp_path, LIMITS._replace(request_timeout_s=0.002))

    def life(number: int) -> None:
        sock = connected(stage.port)
        sock.sendall(b"GET /readyz HTTP/1.1\r\n" if number % 2 else b"")
        assert not sock.recv(4096)
        sock.close()

    assert_freed(life, LIVES)
    stage.close()


@pytest.mark.parametrize("how", [End.leave, End.drop])
def test_an_executors_connection(stage: Stage, how: Callable[[End], None]) -> None:
    assert_freed(lambda number: how(stage.executor()), LIVES)


@pytest.mark.parametrize("how", [End.leave, End.drop])
def test_a_harnesss_connection(stage: Stage, how: Callable[[End], None]) -> None:
    executor = stage.executor()
    assert_freed(lambda number: how(stage.harness()), LIVES)
    executor.drop()


def test_a_stream_that_ends_with_a_reset(stage: Stage) -> None:
    executor, harness = stage.executor(), stage.harness()

    def life(number: int) -> None:
        name = f"stream-{number}"
        harness.send(name, Handshake(b"hello"))
        assert executor.receive() == Handshake(b"hello")
        executor.send(name, Data(0, bytes(70_000)))
        assert harness.receive() == Data(0, bytes(70_000))
        (executor if number % 2 else harness).send(name, Reset("over"))
        assert (harness if number % 2 else executor).receive() == Reset("over")

    assert_freed(life, LIVES)
    harness.drop()
    executor.drop()


def test_streams_of_a_lost_harness(stage: Stage) -> None:
    executor = stage.executor()

    def life(number: int) -> None:
        harness = stage.harness()
        harness.send(f"stream-{number}", Handshake(b"hello"))
        assert executor.receive() == Handshake(b"hello")
        harness.drop()
        assert executor.receive() == Reset(RESET_HARNESS_LOST)

    def settle() -> None:
        wait_until(
            lambda: not stage.gauge("streams"), pause=gevent.sleep
        )  # the grace of those that were lost
        turns()

    assert_freed(life, LIVES, settle=settle)
    executor.drop()


def test_a_stream_that_moves_to_another_connection(stage: Stage) -> None:
    executor = stage.executor()

    def life(number: int) -> None:
        name = f"stream-{number}"
        before = stage.harness()
        before.send(name, Handshake(b"hello"))
        assert executor.receive() == Handshake(b"hello")
        after = stage.harness()
        after.send(name, Resume(0))
        assert executor.receive() == Resume(0)
        executor.send(name, Reset("over"))
        assert after.receive() == Reset("over")
        before.drop()
        after.drop()

    assert_freed(life, LIVES)
    executor.drop()


def test_a_connection_with_half_a_frame_in_and_much_unsent(stage: Stage) -> None:
    executor = stage.executor()

    def life(number: int) -> None:
        harness = stage.harness()
        harness.send("stream", Handshake(b"hello"))
        assert executor.receive() == Handshake(b"hello")
        for seq in range(8):
            executor.send("stream", Data(seq, bytes(200_000)))
        harness.sock.sendall(masked_frame(2, bytes(200_000))[:150_000])
        turns()
        harness.drop()
        assert executor.receive() == Reset(RESET_HARNESS_LOST)
        stage.harness().drop()  # whose coming says that the other one is gone

    assert_freed(life, LIVES)
    executor.drop()


def test_an_executor_that_another_one_replaces(stage: Stage) -> None:
    def life(number: int) -> None:
        before = stage.executor()
        after = stage.executor()
        before.drop()
        after.leave()

    assert_freed(life, LIVES)


def test_connections_with_tls(stage: Stage, tmp_path: Path) -> None:
    authority = make_authority()
    (tmp_path / "server.pem").write_bytes(authority.issue("127.0.0.1"))
    stage.listener.context = server_context(str(tmp_path / "server.pem"), str(tmp_path / "server.pem"))
    context = SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority.pem.decode())

    def life(number: int) -> None:
        plain = connected(stage.port)
        if number % 2:
            plain.sendall(b"no TLS" * 10)
            with suppress(ConnectionResetError):
                plain.recv(4096)
            plain.close()
            return
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as secured:
            secured.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert b" 200 " in secured.recv(4096)

    assert_freed(life, LIVES)


@pytest.mark.parametrize(
    "sent",
    [b"\xff" * 64, masked_frame(1, b"\xff"), masked_frame(2, b"no frame") * 65],
    ids=["framing", "text", "frames"],
)
def test_a_peer_that_breaks_the_rules(stage: Stage, sent: bytes) -> None:
    def life(number: int) -> None:
        peer = stage.executor()
        peer.sock.sendall(sent)
        while peer.sock.recv(4096):
            pass
        peer.drop()

    assert_freed(life, LIVES)
