"""Messages whose parts are meant to be taken for messages of their own, at the proxy or behind it."""

from __future__ import annotations

import struct

import pytest
from gevent import socket
from gevent.event import Event

from execserver.egress.decisions import Mode
from tests.support.egress_scene import get, rules, scene, upstream

INNER = b"POST /other HTTP/1.1\r\nHost: other.example\r\nContent-Length: 0\r\n\r\n"


def test_a_body_does_not_lose_its_length_on_the_way() -> None:
    asked = ("Connection: keep-alive, Content-Length", f"Content-Length: {len(INNER)}")
    with scene(rules("127.0.0.1", mode=Mode.LIMITED)) as here, upstream() as server:
        assert here.status(get(server.place, *asked) + INNER) == 400
        assert server.received == []


@pytest.mark.parametrize("option", ["Host", "close, host"])
def test_a_request_does_not_lose_its_host_on_the_way(option: str) -> None:
    with scene(rules("127.0.0.1")) as here, upstream() as server:
        assert here.status(get(server.place, f"Connection: {option}")) == 400
        assert server.received == []


def test_an_answer_does_not_lose_its_length_on_the_way() -> None:
    answer = b"HTTP/1.1 200 OK\r\nConnection: content-length\r\nContent-Length: 2\r\n\r\nhi"
    with scene(rules("127.0.0.1")) as here, upstream(answer) as server:
        said = here.say(get(server.place))
        assert said.startswith(b"HTTP/1.1 502 ")
        assert b"hi" not in said.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("fields", ["", "Host:\r\n", "hOST: \t\r\n"])
def test_the_server_is_told_the_host_that_was_judged(fields: str) -> None:
    with scene(rules("127.0.0.1")) as here, upstream() as server:
        assert here.status(f"GET http://{server.place}/ HTTP/1.1\r\n{fields}\r\n".encode()) == 200
        assert server.received == [f"GET / HTTP/1.1\r\nHost: {server.place}\r\n\r\n".encode()]


def test_an_answer_that_is_cut_off_is_not_told_as_a_whole_one() -> None:
    heard_so_far = Event()

    def cut_off(sock: socket.socket) -> None:
        sock.recv(65536)
        sock.sendall(b"HTTP/1.1 200 OK\r\n\r\nbegun")
        heard_so_far.wait()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset

    with scene(rules("127.0.0.1")) as here, upstream(cut_off) as server, here.connection() as sock:
        sock.sendall(get(server.place))
        said = b""
        while not said.endswith(b"5\r\nbegun\r\n"):
            said += sock.recv(4096)
        heard_so_far.set()
        assert sock.recv(4096) == b""
