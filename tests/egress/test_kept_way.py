"""Requests of one client to the same server, one after the other, share a connection if that is safe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from gevent import socket
from gevent.event import Event

from tests.support.egress_scene import HELLO, PUBLIC, Names, Scene, Upstream, get, rules, scene, upstream

SECOND = HELLO.replace(b"hi", b"ho")
UNASKED = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nbad"

Serve = Callable[[socket.socket], None]


class Counted:
    """A server that counts its connections, and serves each in its own way, further ones like the last."""

    def __init__(self, *serve: Serve) -> None:
        self._serve = serve
        self.connections = 0
        self.has_ended = Event()

    def __call__(self, sock: socket.socket) -> None:
        """Serve a connection."""
        number = self.connections
        self.connections += 1
        self._serve[min(number, len(self._serve) - 1)](sock)
        self.has_ended.set()


def answering(*answers: bytes) -> Serve:
    """Answer each request with the next of these, and end behind the last one without a word."""

    def serve(sock: socket.socket) -> None:
        for answer in answers:
            if not request(sock):
                return
            sock.sendall(answer)
        request(sock)

    return serve


def request(sock: socket.socket) -> bytes:
    """Return a request without a body."""
    data = b""
    while not data.endswith(b"\r\n\r\n") and (more := sock.recv(65536)):
        data += more
    return data


def asked(sock: socket.socket, data: bytes) -> bytes:
    """Send a request; return the answer, whose body has two bytes if it is a good one."""
    sock.sendall(data)
    said = b""
    while not said.endswith((b"\r\n\r\nhi", b"\r\n\r\nho", b"upstream failure")):
        more = sock.recv(4096)
        if not more:
            break
        said += more
    return said.partition(b"\r\n\r\n")[2]


@contextmanager
def played(*serve: Serve) -> Iterator[tuple[Scene, Upstream, Counted]]:
    """Serve a proxy, and behind it a server."""
    counted = Counted(*serve)
    with scene(rules("127.0.0.1")) as here, upstream(counted) as server:
        yield here, server, counted


@pytest.mark.parametrize("method", ["GET", "OPTIONS"])
def test_a_second_request_goes_over_the_connection_of_the_first(method: str) -> None:
    with played(answering(HELLO, SECOND)) as (here, server, counted), here.connection() as sock:
        assert asked(sock, get(server.place, method=method)) == b"hi"
        assert asked(sock, get(server.place, path="/other")) == b"ho"
        assert counted.connections == 1
    assert [record.question.port for record in here.records] == [server.port, server.port]


def test_a_chunked_answer_leaves_the_connection_to_the_next_request() -> None:
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
    with played(answering(chunked, SECOND)) as (here, server, counted), here.connection() as sock:
        sock.sendall(get(server.place))
        said = b""
        while not said.endswith(b"0\r\n\r\n"):
            said += sock.recv(4096)
        assert asked(sock, get(server.place)) == b"ho"
        assert counted.connections == 1


def test_the_connection_ends_with_its_client() -> None:
    with played(answering(HELLO, SECOND)) as (here, server, counted):
        with here.connection() as sock:
            assert asked(sock, get(server.place)) == b"hi"
            assert not counted.has_ended.is_set()
        assert counted.has_ended.wait(20)


def test_another_client_gets_another_connection() -> None:
    with played(answering(HELLO, SECOND)) as (here, server, counted), here.connection() as one:
        assert asked(one, get(server.place)) == b"hi"
        with here.connection() as other:
            assert asked(other, get(server.place)) == b"hi"
        assert counted.connections == 2


def test_another_port_gets_another_connection() -> None:
    with (
        played(answering(HELLO, HELLO)) as (here, server, counted),
        upstream() as second,
        here.connection() as sock,
    ):
        assert asked(sock, get(server.place)) == b"hi"
        assert asked(sock, get(second.place)) == b"hi"
        assert second.received == [f"GET / HTTP/1.1\r\nHost: {second.place}\r\n\r\n".encode()]
        assert counted.has_ended.wait(20)


def test_another_name_of_the_same_place_gets_another_connection() -> None:
    counted = Counted(answering(HELLO, UNASKED), answering(SECOND))
    names = Names(one_example=[["127.0.0.1"]], two_example=[["127.0.0.1"]])
    allowed = rules("one.example", "two.example", local=True)
    with scene(allowed, names) as here, upstream(counted) as server, here.connection() as sock:
        assert asked(sock, get(f"one.example:{server.port}")) == b"hi"
        assert asked(sock, get(f"two.example:{server.port}")) == b"ho"
        assert counted.connections == 2


def test_a_name_that_leads_elsewhere_now_is_followed() -> None:
    counted = Counted(answering(HELLO, SECOND))
    names = Names(one_example=[["127.0.0.1"], ["127.0.0.2"]])
    with (
        scene(rules("one.example", local=True), names) as here,
        upstream(counted) as server,
        here.connection() as sock,
    ):
        assert asked(sock, get(f"one.example:{server.port}")) == b"hi"
        assert asked(sock, get(f"one.example:{server.port}")) == b"upstream failure"  # nobody listens there
        assert counted.has_ended.wait(20)


def test_a_request_that_must_not_come_twice_gets_another_connection() -> None:
    post = "Content-Length: 0"
    with (
        played(answering(HELLO, UNASKED), answering(SECOND)) as (here, server, counted),
        here.connection() as sock,
    ):
        assert asked(sock, get(server.place)) == b"hi"
        assert asked(sock, get(server.place, post, method="POST")) == b"ho"
        assert counted.connections == 2


@pytest.mark.parametrize(
    "first",
    [
        HELLO + UNASKED,
        HELLO + b"\r\n",
        HELLO.replace(b"content-length", b"connection: close\r\ncontent-length"),
        HELLO.replace(b"HTTP/1.1", b"HTTP/1.0"),
        b"HTTP/1.1 200 OK\r\nconnection: keep-alive, Close\r\ncontent-length: 2\r\n\r\nhi",
    ],
)
def test_nothing_follows_an_answer_that_is_not_the_end(first: bytes) -> None:
    with (
        played(answering(first, UNASKED), answering(SECOND)) as (here, server, counted),
        here.connection() as sock,
    ):
        assert asked(sock, get(server.place)) == b"hi"
        assert asked(sock, get(server.place)) == b"ho"
        assert counted.connections == 2


def test_what_a_server_says_between_two_requests_answers_none() -> None:
    said_more, may_end = Event(), Event()

    def talks(sock: socket.socket) -> None:
        request(sock)
        sock.sendall(HELLO)
        sock.sendall(UNASKED)
        said_more.set()
        may_end.wait(20)

    with played(talks, answering(SECOND)) as (here, server, counted), here.connection() as sock:
        assert asked(sock, get(server.place)) == b"hi"
        assert said_more.wait(20)
        assert asked(sock, get(server.place)) == b"ho"
        may_end.set()
        assert counted.connections == 2


def test_a_request_on_a_connection_that_the_server_gives_up_is_asked_once_more() -> None:
    with played(answering(HELLO), answering(SECOND)) as (here, server, counted), here.connection() as sock:
        assert asked(sock, get(server.place)) == b"hi"
        assert asked(sock, get(server.place)) == b"ho"
        assert counted.connections == 2


def test_it_is_asked_once_more_and_no_more() -> None:
    with played(answering(HELLO), answering()) as (here, server, counted), here.connection() as sock:
        assert asked(sock, get(server.place)) == b"hi"
        assert asked(sock, get(server.place)) == b"upstream failure"
        assert counted.connections == 2


def test_a_request_whose_answer_had_begun_is_not_asked_once_more() -> None:
    def begins(sock: socket.socket) -> None:
        request(sock)
        sock.sendall(HELLO)
        request(sock)
        sock.sendall(b"HTTP/1.1 200 O")

    with played(begins, answering(SECOND)) as (here, server, counted), here.connection() as sock:
        assert asked(sock, get(server.place)) == b"hi"
        assert asked(sock, get(server.place)) == b"upstream failure"
        assert counted.connections == 1


def test_a_connection_that_becomes_a_tunnel_keeps_none() -> None:
    with played(answering(HELLO, SECOND)) as (here, server, counted), here.connection() as sock:
        assert asked(sock, get(server.place)) == b"hi"
        sock.sendall(f"CONNECT {server.place} HTTP/1.1\r\nHost: {server.place}\r\n\r\n".encode())
        said = b""
        while not said.endswith(b"\r\n\r\n"):
            said += sock.recv(4096)
        assert counted.has_ended.wait(20)
        assert asked(sock, get(server.place)) == b"hi"
        assert counted.connections == 2


def test_the_connection_to_an_upstream_proxy_is_not_kept() -> None:
    counted = Counted(answering(HELLO, SECOND))
    names = Names(public_example=[[PUBLIC]], **{"127.0.0.1": [["127.0.0.1"]]})
    with upstream(counted) as up:
        environ = {b"HTTP_PROXY": f"http://{up.place}".encode()}
        with scene(rules("*"), names, environ=environ) as here, here.connection() as sock:
            assert asked(sock, get("public.example:80")) == b"hi"
            assert counted.has_ended.wait(20)
            assert asked(sock, get("public.example:80")) == b"hi"
            assert counted.connections == 2
