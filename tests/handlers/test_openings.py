"""Ports and watches that a client closes before they are open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent import socket

from tests.handlers.asking import Client, Server
from tests.handlers.test_watching import client_of

HERE = "127.0.0.1"
NAME = "localhost"  # of which addresses are looked up: opening waits for that


@pytest.fixture
def client(handlers_server: Server) -> Iterator[Client]:
    client = client_of(handlers_server)
    yield client
    client.ask("session/keep", keepMs=0)
    client.leave()


@pytest.fixture
def there() -> Iterator[Any]:
    with socket.socket() as there:
        there.bind((HERE, 0))
        there.listen()
        there.settimeout(20)
        yield there


def asked(client: Client, method: str, **params: object) -> gevent.Greenlet[[], Any]:
    """Ask in a greenlet of its own, which has not had a turn yet, as the answers of a real connection."""
    answer = client.answer(method, params)
    return gevent.spawn(lambda: client.settled(method, answer))


def open_ports(client: Client) -> int:
    return client.server.services.forwarding.open_ports


def test_a_port_that_is_closed_right_behind_its_opening_never_opens(client: Client, there: Any) -> None:
    opening = asked(client, "port/open", portId="a", host=NAME, port=there.getsockname()[1])
    assert client.ask("port/close", portId="a") == {}
    assert opening.get(timeout=20) == (-32600, "port a was closed before it was open")
    far, _ = there.accept()
    with far:
        assert far.recv(1) == b""
    assert (client.ask("port/list")["streams"], open_ports(client)) == ([], 0)


def test_a_port_at_an_address_of_this_machine_is_open_before_the_next_request(
    client: Client, there: Any
) -> None:
    opening = asked(client, "port/open", portId="a", host=HERE, port=there.getsockname()[1])
    assert open_ports(client) == 1
    assert client.ask("port/close", portId="a") == {}
    far, _ = there.accept()
    with far:
        assert far.recv(1) == b""
    assert opening.get(timeout=20)["portId"] == "a"
    assert (client.ask("port/list")["streams"], open_ports(client)) == ([], 0)
    refused = -32603, "Connection refused (os error 111)"
    assert client.ask("port/open", portId="a", host=HERE, port=1) == refused
    assert open_ports(client) == 0


def test_first_bytes_go_along_with_the_opening(client: Client, there: Any) -> None:
    opening = asked(client, "port/open", portId="a", host=HERE, port=there.getsockname()[1], chunk="aGk=")
    assert opening.get(timeout=20)["received"] == 2
    far, _ = there.accept()
    with far:
        assert far.recv(10) == b"hi"
        assert client.ask("port/data", portId="a", offset=1, chunk="aSE=") == {"received": 3}
        assert far.recv(10) == b"!"  # what has come before is not written again


def test_a_listener_that_is_closed_right_behind_its_opening_never_listens(client: Client) -> None:
    opening = asked(client, "port/listen", portId="a", host=HERE, port=0)
    assert client.ask("port/close", portId="a") == {}
    assert opening.get(timeout=20) == (-32600, "port a was closed before it was open")
    assert open_ports(client) == 0
    assert client.ask("port/listen", portId="a", host=HERE, port=0)["portId"] == "a"


def test_a_watch_that_is_ended_right_behind_its_beginning_never_begins(
    client: Client, tmp_path: Path
) -> None:
    opening = asked(client, "fs/watch", watchId="a", path=str(tmp_path))
    assert client.ask("fs/unwatch", watchId="a") == {}
    assert opening.get(timeout=20) == (-32600, "watch a was closed before it was open")
    totals = client.server.services.watch_totals
    assert (totals.watches, totals.folders) == (0, 0)
    assert client.ask("fs/watch", watchId="a", path=str(tmp_path))["watchId"] == "a"


def test_what_is_being_opened_ends_with_its_session(client: Client, there: Any, tmp_path: Path) -> None:
    port = there.getsockname()[1]
    openings = [
        asked(client, "port/open", portId="o", host=NAME, port=port),
        asked(client, "port/listen", portId="l", host=HERE, port=0),
        asked(client, "fs/watch", watchId="w", path=str(tmp_path)),
    ]
    client.call.session.end()
    assert [one.get(timeout=20)[0] for one in openings] == [-32600] * 3
    totals = client.server.services.watch_totals
    assert (open_ports(client), totals.watches, totals.folders) == (0, 0, 0)


@pytest.mark.parametrize(
    ("method", "member", "params"),
    [
        ("port/open", "portId", {"host": NAME, "port": 1}),
        ("port/listen", "portId", {"host": HERE, "port": 0}),
        ("fs/watch", "watchId", {"path": "/no/such"}),
    ],
)
def test_an_id_is_taken_from_the_request_on(
    client: Client, method: str, member: str, params: dict[str, Any]
) -> None:
    first = client.answer(method, {member: "a", **params})
    assert client.ask(method, **{member: "a", **params})[1].endswith("a already exists")
    del first  # a connection that ends forgets the answers that wait
    assert not client.call.session.ports(client.server.services.forwarding)._openings
    assert "already exists" not in str(client.ask(method, **{member: "a"}, **params))


def test_openings_count_towards_the_limits(client: Client) -> None:
    held = [client.answer("port/listen", {"portId": f"{n}", "host": HERE, "port": 0}) for n in range(32)]
    refusal = client.ask("port/listen", portId="x", host=HERE, port=0)
    assert refusal == (-32600, "at most 32 listeners may be open in a session")
    del held
    assert client.ask("port/listen", portId="x", host=HERE, port=0)["portId"] == "x"
