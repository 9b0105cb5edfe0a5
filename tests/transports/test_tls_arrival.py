"""The bridge between TLS and a plain socket: the time of a handshake, and how each end ends."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest
from gevent import ssl as green_ssl

from execserver.access.tls import TlsFiles
from execserver.settings import Settings
from execserver.transports.arrival import Arrived, NotWelcome
from execserver.transports.tls_arrival import TlsArrival
from tests.support.certificates import make_authority
from tests.support.greenlets import turns
from tests.support.waiting import wait_until

ADDRESS = ("127.0.0.1", 5)


class Ends:
    """Both ends of a TCP connection; the server's has what `TlsArrival` made of it."""

    def __init__(self, folder: Path, **settings: float) -> None:
        authority = make_authority()
        (folder / "both.pem").write_bytes(authority.issue("127.0.0.1"))
        (folder / "ca.pem").write_bytes(authority.pem)
        self._authority_file = str(folder / "ca.pem")
        both = str(folder / "both.pem")
        self.arrival = TlsArrival(TlsFiles(both, both), Settings(**settings))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.client = gevent.socket.create_connection(listener.getsockname())
            self.server, _ = listener.accept()
        self.server.setblocking(False)

    def greet(self) -> Arrived:
        """Do the handshake from both ends."""
        arriving = gevent.spawn(self.arrival.receive, self.server, ADDRESS)
        context = green_ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self._authority_file)
        self.client = context.wrap_socket(self.client, server_hostname="127.0.0.1")
        arrived: Arrived = arriving.get(timeout=20)
        return arrived

    def close(self) -> None:
        """Close what a test has left."""
        self.client.close()
        if self.server.fileno() >= 0:
            self.server.close()
        turns()


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    """A fresh connection."""
    made = Ends(tmp_path, close_timeout_s=0.2)
    yield made
    wait_until(lambda: made.server.fileno() == -1, pause=gevent.sleep)
    made.close()


def received(sock: socket.socket) -> bytes:
    """Read from a socket that does not wait, until there is something or the end."""
    found: list[bytes] = []

    def arrived() -> bool:
        try:
            found.append(sock.recv(65_536))
        except BlockingIOError:
            return False
        return True

    wait_until(arrived, pause=gevent.sleep)
    return found[0]


def test_a_handshake_has_a_time_limit(tmp_path: Path) -> None:
    ends = Ends(tmp_path, upgrade_timeout_s=0.02)
    try:
        with pytest.raises(NotWelcome, match=r"127\.0\.0\.1:5 took too long"):
            ends.arrival.receive(ends.server, ADDRESS)
        assert ends.arrival._liveness._watched == {}
    finally:
        ends.close()


def test_what_is_no_tls_is_an_error(tmp_path: Path) -> None:
    ends = Ends(tmp_path)
    try:
        ends.client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(ssl.SSLError):
            ends.arrival.receive(ends.server, ADDRESS)
    finally:
        ends.close()


def test_a_handshake_that_fails_after_an_answer_is_watched_no_more(tmp_path: Path) -> None:
    ends = Ends(tmp_path)
    try:
        context = green_ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # it trusts nobody

        def greet() -> None:
            with pytest.raises(ssl.SSLError):
                ends.arrival.receive(ends.server, ADDRESS)

        greeting = gevent.spawn(greet)
        distrusting = context.wrap_socket(
            ends.client, server_hostname="127.0.0.1", do_handshake_on_connect=False
        )
        ends.client = distrusting
        with pytest.raises(ssl.SSLError):
            distrusting.do_handshake()
        greeting.get(timeout=20)
        assert ends.arrival._liveness._watched == {}
    finally:
        ends.close()


def test_a_peer_that_leaves_during_the_handshake_is_an_error(tmp_path: Path) -> None:
    ends = Ends(tmp_path)
    try:
        ends.client.close()
        turns()
        with pytest.raises(ConnectionError):
            ends.arrival.receive(ends.server, ADDRESS)
    finally:
        ends.close()


def test_bytes_go_both_ways_and_the_servers_end_reaches_the_peer(ends: Ends) -> None:
    arrived = ends.greet()
    ends.client.sendall(b"ping")
    assert received(arrived.sock) == b"ping"
    arrived.sock.send(b"pong")
    arrived.sock.close()
    assert ends.client.recv(100) == b"pong"
    assert ends.client.recv(100) == b""


def test_the_peers_end_reaches_the_server(ends: Ends) -> None:
    arrived = ends.greet()
    ends.client.close()
    assert received(arrived.sock) == b""
    arrived.sock.close()


def test_a_server_that_reads_nothing_makes_the_peer_wait(ends: Ends) -> None:
    arrived = ends.greet()
    flood = gevent.spawn(ends.client.sendall, bytes(100_000_000))
    flood.join(0.3)
    assert not flood.ready()
    flood.kill()
    arrived.sock.close()
    ends.client.close()
