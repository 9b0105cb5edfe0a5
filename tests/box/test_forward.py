"""`execserver forward`: bytes both ways through a real server, the other way round, and for SOCKS clients."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from execserver.box.ports.forwards import Forward, Place, parse, parse_listen
from tests.box.boxes import Person, cut_way, mistaken
from tests.support.server_process import ServerProcess

WAIT_S = 30.0


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of somebody who sends back what it gets, and ends when its peer does."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            with sock:
                while data := sock.recv(65536):
                    sock.sendall(data)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(WAIT_S)


@contextmanager
def forwarding(person: Person, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start a forward; yield it, and the port that listens."""
    forward = person.start("forward", *words, stdin=subprocess.DEVNULL)
    assert forward.stdout is not None
    try:
        yield forward, int(forward.stdout.readline().split()[0].rpartition(b":")[2])
    finally:
        forward.terminate()
        assert forward.wait(WAIT_S) == 128 + signal.SIGTERM
        forward.communicate()


def exchanged(sock: socket.socket, data: bytes) -> bytes:
    """Send, end, and return all that comes back."""

    def send() -> None:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    found = b""
    while piece := sock.recv(65536):
        found += piece
    sender.join(WAIT_S)
    return found


def test_a_connection_leads_through_the_box(person: Person, server: ServerProcess, echo: int) -> None:
    with cut_way(server) as way, forwarding(person, way.url, f"0:localhost:{echo}") as (_, port):
        data = bytes(range(256)) * 8192  # 2 MiB
        with socket.create_connection(("127.0.0.1", port), WAIT_S) as sock:
            assert exchanged(sock, data) == data
        with socket.create_connection(("127.0.0.1", port), WAIT_S) as sock:
            sock.sendall(b"before")
            assert sock.recv(10) == b"before"
            way.cut()
            assert exchanged(sock, b"after") == b"after"


@pytest.mark.long
def test_the_box_may_listen_instead(person: Person, server: ServerProcess, echo: int) -> None:
    with (
        forwarding(person, server.url, "--reverse", f"0:127.0.0.1:{echo}") as (_, port),
        socket.create_connection(("127.0.0.1", port), WAIT_S) as sock,
    ):
        assert exchanged(sock, b"hello") == b"hello"


def test_a_socks_client_chooses_where_to_go(person: Person, server: ServerProcess, echo: int) -> None:
    with forwarding(person, server.url, "--socks", "0") as (_, port):
        request = b"\5\1\0\3\x09localhost" + echo.to_bytes(2, "big")
        with socket.create_connection(("127.0.0.1", port), WAIT_S) as sock:
            sock.sendall(b"\5\2\2\0")
            assert sock.recv(2) == b"\5\0"
            sock.sendall(request)
            assert sock.recv(10) == b"\5\0\0\1" + bytes(6)
            assert exchanged(sock, b"hello") == b"hello"
        for nonsense in (b"GET / HTTP/1.1\r\n\r\n", b"\4\1", b"\5\1\2", b"\5\1\0\5\2\0\1" + bytes(6)):
            with socket.create_connection(("127.0.0.1", port), WAIT_S) as sock:
                sock.sendall(nonsense)
                sock.shutdown(socket.SHUT_WR)
                assert len(sock.recv(100)) <= 12


@pytest.mark.long
def test_what_the_box_refuses_is_told(person: Person, server: ServerProcess) -> None:
    with (
        forwarding(person, server.url, "0:192.0.2.1:80") as (forward, port),
        socket.create_connection(("127.0.0.1", port), WAIT_S) as sock,
    ):
        assert sock.recv(1) == b""
        assert forward.stderr is not None
        assert forward.stderr.readline() == (
            b"execserver: 192.0.2.1:80: this server forwards to loopback addresses only"
            b" (--allow-forward loopback)\n"
        )


@pytest.mark.long
def test_a_port_that_is_taken_is_told(person: Person, server: ServerProcess, echo: int) -> None:
    done = person.run("forward", server.url, f"{echo}:localhost:1")
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{echo}: Address already in use\n".encode() in done.stderr
    there = person.run("forward", server.url, "-R", f"{echo}:localhost:1")
    assert there.returncode == 1
    assert f"cannot listen on 127.0.0.1:{echo}: Address in use (os error 98)\n".encode() in there.stderr


@pytest.mark.parametrize(
    "words",
    [[], ["box"], ["box", "x"], ["1:h:99999"], ["--socks", "x"], ["-R", "1"], ["1:h:0"], ["a b:1:h:1"]],
)
def test_wrong_usage_exits_with_2(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert mistaken(["forward", *words], monkeypatch, capfd).startswith("error: ")


def test_forms() -> None:
    assert parse("3000:localhost:80") == Forward(Place("127.0.0.1", 3000), Place("localhost", 80))
    assert parse("[::]:0:[::1]:80") == Forward(Place("::", 0), Place("::1", 80))
    assert parse_listen("0.0.0.0:1080") == Place("0.0.0.0", 1080)
    assert str(Place("::1", 80)) == "[::1]:80"
    assert not any(map(parse, ("3000", "ws://127.0.0.1:80", "h:80", "1:2", "1::2", "ssh:h")))
    assert parse("1:a.b.:2") is not None
    assert not any(parse(f"1:{host}:2") for host in ("a..b", ".", "a" * 64))  # no resolver takes these
