"""Connections to the registry that are used again, and those that must not be."""

from __future__ import annotations

from collections.abc import Iterator

import gevent
import pytest
from gevent import socket

from execserver.remote import connection_reuse
from execserver.remote.answers import CallFailed
from execserver.remote.http import ApiClient, Pending
from tests.support.greenlets import turns
from tests.support.relay import listen
from tests.support.waiting import wait_until

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Server:
    """Answers each request of each connection with the next text; None ends the connection instead."""

    def __init__(self) -> None:
        self.answers: list[bytes | None] = []
        self.requests: list[tuple[int, bytes]] = []
        self.connections = 0
        self._listening = listen()
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/"
        self._greenlets: list[gevent.Greenlet[..., None]] = [gevent.spawn(self._accept)]
        self._socks: list[socket.socket] = []

    def _accept(self) -> None:
        while True:
            sock, _ = self._listening.accept()
            self.connections += 1
            self._socks.append(sock)
            number = self.connections
            served: gevent.Greenlet[..., None] = gevent.Greenlet(self._serve, sock, number)
            served.start()
            self._greenlets.append(served)

    def _serve(self, sock: socket.socket, number: int) -> None:
        with sock:
            while data := sock.recv(65536):
                self.requests.append((number, data))
                answer = self.answers.pop(0) if self.answers else OK
                if answer is None:
                    return
                sock.sendall(answer)

    def end_connections(self) -> None:
        """Close every connection from this side."""
        for sock in self._socks:
            sock.shutdown(socket.SHUT_RDWR)
        gevent.sleep(0.01)

    def close(self) -> None:
        """End everything."""
        gevent.killall(self._greenlets)
        for sock in [self._listening, *self._socks]:
            sock.close()


@pytest.fixture
def server() -> Iterator[Server]:
    """A server."""
    server = Server()
    yield server
    server.close()


@pytest.fixture
def client() -> Iterator[ApiClient]:
    """A client that keeps connections."""
    client = ApiClient({}, keeps=True)
    yield client
    client.close()


def ask(client: ApiClient, server: Server) -> bytes:
    return client.call("POST", server.url, [("x", "1")], b"body", timeout_s=5).body


def test_a_connection_is_used_again(server: Server, client: ApiClient) -> None:
    assert [ask(client, server) for _ in range(3)] == [b"ok"] * 3
    assert server.connections == 1
    first, second, _ = (data for _, data in server.requests)
    assert first == second


def test_without_being_told_nothing_is_kept(server: Server) -> None:
    client = ApiClient({})
    assert [ask(client, server) for _ in range(2)] == [b"ok"] * 2
    assert server.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        OK + b"more",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    ],
)
def test_what_cannot_be_used_again_is_not(server: Server, client: ApiClient, answer: bytes) -> None:
    server.answers = [answer]
    assert [ask(client, server) for _ in range(2)] == [b"ok"] * 2
    assert server.connections == 2


def test_a_body_up_to_the_end_of_the_connection_is_not_followed_by_anything(
    server: Server, client: ApiClient
) -> None:
    server.answers = [b"HTTP/1.1 200 OK\r\n\r\nok", None]
    greenlet = gevent.spawn(ask, client, server)
    wait_until(lambda: server.requests, pause=gevent.sleep)
    server.end_connections()
    assert greenlet.get(timeout=20) == b"ok"
    server.answers = []
    assert ask(client, server) == b"ok"
    assert server.connections == 2


def test_a_connection_that_was_closed_meanwhile_is_noticed(server: Server, client: ApiClient) -> None:
    ask(client, server)
    server.end_connections()
    assert ask(client, server) == b"ok"
    assert [number for number, _ in server.requests] == [1, 2]


def test_a_connection_that_is_closed_in_the_same_moment_costs_nothing(
    server: Server, client: ApiClient
) -> None:
    ask(client, server)
    server.answers = [None]
    assert ask(client, server) == b"ok"
    assert [number for number, _ in server.requests] == [1, 1, 2]


def begun(client: ApiClient, server: Server) -> Pending:
    return client.begin_post(server.url, [("x", "1")], {}, timeout_s=5)


def test_over_a_kept_connection_a_request_is_sent_before_anybody_waits(
    server: Server, client: ApiClient
) -> None:
    ask(client, server)
    pending = begun(client, server)
    wait_until(lambda: len(server.requests) == 2, pause=gevent.sleep)
    assert pending.answered().body == b"ok"
    assert server.connections == 1


def test_without_a_connection_nothing_is_sent_before_somebody_waits(
    server: Server, client: ApiClient
) -> None:
    pending = begun(client, server)
    turns()
    assert server.connections == 0
    assert pending.answered().body == b"ok"


def test_what_was_sent_and_not_answered_is_sent_again_on_a_new_connection(
    server: Server, client: ApiClient
) -> None:
    ask(client, server)
    server.answers = [None]
    pending = begun(client, server)
    wait_until(lambda: len(server.requests) == 2, pause=gevent.sleep)
    assert pending.answered().body == b"ok"
    assert [number for number, _ in server.requests] == [1, 1, 2]


def test_a_connection_is_free_for_another_request_once_the_one_before_is_closed(
    server: Server, client: ApiClient
) -> None:
    ask(client, server)
    pending = begun(client, server)
    assert pending.wait().body == b"ok"
    assert ask(client, server) == b"ok"
    assert server.connections == 2
    pending.close()
    pending.close()
    assert ask(client, server) == b"ok"
    assert server.connections == 2


def test_a_request_that_was_given_up_takes_its_connection_along(server: Server, client: ApiClient) -> None:
    ask(client, server)
    begun(client, server).close()
    assert ask(client, server) == b"ok"
    assert server.connections == 2


def test_a_new_connection_that_fails_is_not_tried_again(server: Server, client: ApiClient) -> None:
    server.answers = [None]
    with pytest.raises(CallFailed):
        ask(client, server)
    assert len(server.requests) == 1


def test_a_connection_is_kept_for_a_while_only(
    server: Server, client: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_reuse, "KEPT_S", 0.0)
    assert [ask(client, server) for _ in range(2)] == [b"ok"] * 2
    assert server.connections == 2


def test_only_a_few_are_kept(server: Server, client: ApiClient) -> None:
    waiting = [gevent.spawn(ask, client, server) for _ in range(10)]
    assert [each.get(timeout=20) for each in waiting] == [b"ok"] * 10
    before = server.connections
    again = [gevent.spawn(ask, client, server) for _ in range(connection_reuse.KEPT_CONNECTIONS)]
    assert [each.get(timeout=20) for each in again] == [b"ok"] * connection_reuse.KEPT_CONNECTIONS
    assert server.connections == before


def test_another_place_has_connections_of_its_own(server: Server, client: ApiClient) -> None:
    other = Server()
    try:
        assert [ask(client, each) for each in (server, other, server, other)] == [b"ok"] * 4
        assert (server.connections, other.connections) == (1, 1)
    finally:
        other.close()
