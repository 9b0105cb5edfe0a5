"""A connection to an address that is known has begun before the client is told of the decision."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from gevent import socket

from execserver.egress.decisions import DecisionRecord
from execserver.eventloop import ends
from execserver.eventloop.ends import End, begun
from tests.support.egress_scene import Scene, rules, scene, tunnel, upstream

Say = Callable[[Scene, int], bytes]


def by_connect(here: Scene, port: int) -> bytes:
    """Open a tunnel by CONNECT."""
    return here.say(tunnel(f"127.0.0.1:{port}"))


def by_socks(here: Scene, port: int) -> bytes:
    """The same by SOCKS."""
    return here.say(b"\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01" + port.to_bytes(2), socks=True)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[End]:
    """Return the connections that have begun."""
    found: list[End] = []

    def noting(family: int, place: tuple[str, int]) -> End:
        found.append(begun(family, place))
        return found[-1]

    monkeypatch.setattr(ends, "begun", noting)
    return found


@pytest.mark.parametrize("say", [by_connect, by_socks])
def test_it_has_begun_when_the_client_is_told(say: Say, made: list[End]) -> None:
    begun_when_told: list[int] = []
    with scene(rules("127.0.0.1")) as here, upstream() as server:
        here.proxy._judge._tell = lambda record: begun_when_told.append(len(made))
        say(here, server.port)
        say(here, server.port)
    # The judgement of the first one is not known before it is made, while the host is admitted.
    assert begun_when_told == [1, 2]


@pytest.mark.parametrize("say", [by_connect, by_socks])
def test_what_cannot_be_told_of_does_not_stay_open(say: Say, made: list[End]) -> None:
    def breaks(record: DecisionRecord) -> None:
        raise OSError("the client is gone")

    with scene(rules("127.0.0.1")) as here, socket.create_server(("127.0.0.1", 0)) as listener:
        here.proxy._judge._tell = breaks
        say(here, listener.getsockname()[1])
        assert [end.fileno() for end in made] == [-1]


@pytest.mark.parametrize("say", [by_connect, by_socks])
def test_a_refused_host_is_not_connected_to(say: Say, made: list[End]) -> None:
    with scene(rules("127.0.0.1", denied=["127.0.0.1"])) as here, upstream() as server:
        say(here, server.port)
        say(here, server.port)
        assert not made
        assert len(here.records) == 2


def test_a_tunnel_to_where_nobody_listens_ends_behind_its_answer(made: list[End]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with scene(rules("127.0.0.1")) as here:
        assert by_connect(here, port).startswith(b"HTTP/1.1 200 ")
        assert by_socks(here, port) == b"\x05\x00\x05\x05\x00\x01\x00\x00\x00\x00\x00\x00"
        assert [end.fileno() for end in made] == [-1, -1]
