"""What ends at a relay is freed at once: no connection, stream or request waits for the garbage collector."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from gevent.ssl import SSLContext

from execserver.relay.byte_streams import server_context
from execserver.wire.relay_frames import RESET_HARNESS_LOST, Data, Handshake, Reset, Resume
from tests.conftest import LONG
from tests.support.certificates import make_authority
from tests.support.greenlets import turns
from tests.support.lives import assert_freed
from tests.support.relay_process import key_object, masked_frame
from tests.support.relay_stage import LIMITS, RelayEnd, RelayStage, connected

LIVES = 1000 if LONG else 60


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[RelayStage]:
    # Without a rate: a connection that is held back for it would be counted.
    made = RelayStage(tmp_path, LIMITS._replace(bytes_per_s=0))
    yield made
    made.close()
    made.settle()


def test_a_registry_call(stage: RelayStage) -> None:
    with_executor = stage.executor()

    def life(number: int) -> None:
        assert "url" in stage.call("connect", {"harness_public_key": key_object(1)})
        assert stage.call("validate", {})["error"]["code"] == "invalid_request"
        assert stage.call("nothing", {})["error"]["code"] == "not_found"

    assert_freed(life, LIVES, settle=lambda: stage.settle(1))
    with_executor.drop()


def test_rubbish_and_a_connection_that_says_nothing(stage: RelayStage) -> None:
    def life(number: int) -> None:
        sock = connected(stage.port)
        if number % 2:
            sock.sendall(b"rubbish\r\n\r\n")
            sock.recv(4096)
        sock.close()

    assert_freed(life, LIVES, settle=stage.settle)


def test_a_request_that_takes_too_long(tmp_path: Path) -> None:
    stage = RelayStage(tmp_path, LIMITS._replace(unauthenticated_s=0.002))

    def life(number: int) -> None:
        sock = connected(stage.port)
        sock.sendall(b"GET /readyz HTTP/1.1\r\n" if number % 2 else b"")
        assert not sock.recv(4096)
        sock.close()

    assert_freed(life, LIVES, settle=stage.settle)
    stage.close()
    stage.settle()


@pytest.mark.parametrize("how", [RelayEnd.leave, RelayEnd.drop])
def test_an_executors_connection(stage: RelayStage, how: Callable[[RelayEnd], None]) -> None:
    assert_freed(lambda number: how(stage.executor()), LIVES, settle=stage.settle)


@pytest.mark.parametrize("how", [RelayEnd.leave, RelayEnd.drop])
def test_a_harnesss_connection(stage: RelayStage, how: Callable[[RelayEnd], None]) -> None:
    executor = stage.executor()
    assert_freed(lambda number: how(stage.harness()), LIVES, settle=lambda: stage.settle(1))
    executor.drop()


def test_a_stream_that_ends_with_a_reset(stage: RelayStage) -> None:
    executor, harness = stage.executor(), stage.harness()

    def life(number: int) -> None:
        name = f"stream-{number}"
        harness.send(name, Handshake(b"hello"))
        assert executor.receive() == Handshake(b"hello")
        executor.send(name, Data(0, bytes(70_000)))
        assert harness.receive() == Data(0, bytes(70_000))
        (executor if number % 2 else harness).send(name, Reset("over"))
        assert (harness if number % 2 else executor).receive() == Reset("over")

    assert_freed(life, LIVES, settle=lambda: stage.settle(2))
    harness.drop()
    executor.drop()


def test_streams_of_a_lost_harness(stage: RelayStage) -> None:
    executor = stage.executor()

    def life(number: int) -> None:
        harness = stage.harness()
        harness.send(f"stream-{number}", Handshake(b"hello"))
        assert executor.receive() == Handshake(b"hello")
        harness.drop()
        assert executor.receive() == Reset(RESET_HARNESS_LOST)

    assert_freed(life, LIVES, settle=lambda: stage.settle(1))
    executor.drop()


def test_a_stream_that_moves_to_another_connection(stage: RelayStage) -> None:
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

    assert_freed(life, LIVES, settle=lambda: stage.settle(1))
    executor.drop()


def test_a_connection_with_half_a_frame_in_and_much_unsent(stage: RelayStage) -> None:
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

    assert_freed(life, LIVES, settle=lambda: stage.settle(1))
    executor.drop()


def test_an_executor_that_another_one_replaces(stage: RelayStage) -> None:
    def life(number: int) -> None:
        before = stage.executor()
        after = stage.executor()
        before.drop()
        after.leave()

    assert_freed(life, LIVES, settle=stage.settle)


def test_connections_with_tls(stage: RelayStage, tmp_path: Path) -> None:
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

    assert_freed(life, LIVES, settle=stage.settle)


@pytest.mark.parametrize(
    "sent",
    [b"\xff" * 64, masked_frame(1, b"\xff"), masked_frame(2, b"no frame") * 65],
    ids=["framing", "text", "frames"],
)
def test_a_peer_that_breaks_the_rules(stage: RelayStage, sent: bytes) -> None:
    def life(number: int) -> None:
        peer = stage.executor()
        peer.sock.sendall(sent)
        while peer.sock.recv(4096):
            pass
        peer.drop()

    assert_freed(life, LIVES, settle=stage.settle)
