"""Ports and watches whose caller is interrupted, or whose connection is lost: the server hears of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gevent
import pytest

from execserver.client import ExecServerClient, InvalidRequestError, TransportClosed
from execserver.client.greenlets.flow import Inlet
from execserver.protocol.environment import Extensions
from tests.client.fake_server import FakeServer, Refusal
from tests.support.greenlets import turns

HERE = {"host": "127.0.0.1", "port": 7}


class Kind(NamedTuple):
    """Something that is opened."""

    open: Callable[[ExecServerClient], Any]
    opened_by: str
    closed_by: str
    member: str  # that has the id
    answer: dict[str, object]
    wait: Callable[[Any], object]  # for what comes of it


KINDS = [
    pytest.param(kind, id=kind.opened_by)
    for kind in (
        Kind(
            lambda client: client.ports.open("127.0.0.1", 7),
            *("port/open", "port/close", "portId"),
            {"address": HERE, "windowBytes": 1},
            lambda stream: stream.recv(),
        ),
        Kind(
            lambda client: client.ports.listen("127.0.0.1", 7),
            *("port/listen", "port/close", "portId"),
            {"address": HERE},
            lambda listener: listener.accept(),
        ),
        Kind(
            lambda client: client.files.watch(Path("/")),
            *("fs/watch", "fs/unwatch", "watchId"),
            {"folders": 1, "local": True, "errors": []},
            lambda watch: watch.next_batch(),
        ),
    )
]
pytestmark = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True, params=[False, True], ids=["waiting", "at once"])
def a_server_that_can(
    fake: FakeServer,
    client: ExecServerClient,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    fake.sends_at_once = request.param
    announced = Extensions(port_forward="loopback", fs_watch=True)
    monkeypatch.setattr(type(client._session), "extensions", announced)
    fake.answers |= {"port/close": lambda _: {}, "fs/unwatch": lambda _: {}}


def accept(fake: FakeServer, kind: Kind, number: int = 1) -> str:
    """Answer what opens something; return its id."""
    asked = fake.wait_for(kind.opened_by, number)
    key: str = asked.params[kind.member]
    fake.carriers[asked.connection].reply(asked.call_id, {kind.member: key, **kind.answer})
    return key


def closed(fake: FakeServer, kind: Kind) -> list[str]:
    turns()
    return [one.params[kind.member] for one in fake.asked(kind.closed_by)]


def test_an_opening_whose_caller_is_interrupted_is_closed_behind_its_answer(
    fake: FakeServer, client: ExecServerClient, kind: Kind
) -> None:
    opening = gevent.spawn(kind.open, client)
    fake.wait_for(kind.opened_by)
    opening.kill()
    assert closed(fake, kind) == []  # an older server would not know what to close
    key = accept(fake, kind)
    assert fake.wait_for(kind.closed_by).params == {kind.member: key}
    assert not client._router.watches


def test_an_opening_whose_caller_is_interrupted_and_that_is_refused_needs_no_end(
    fake: FakeServer, client: ExecServerClient, kind: Kind
) -> None:
    opening = gevent.spawn(kind.open, client)
    asked = fake.wait_for(kind.opened_by)
    opening.kill()
    fake.current.put({"error": {"code": -32600, "message": "no"}, "id": asked.call_id})
    assert closed(fake, kind) == []


def test_a_refusal_is_raised_and_nothing_is_closed(
    fake: FakeServer, client: ExecServerClient, kind: Kind
) -> None:
    def refuse(_: Any) -> object:
        raise Refusal(-32600, "no room")

    fake.answers[kind.opened_by] = refuse
    with pytest.raises(InvalidRequestError, match="no room"):
        kind.open(client)
    assert closed(fake, kind) == []


def test_an_opening_that_loses_its_connection_is_closed_on_the_next(
    fake: FakeServer, client: ExecServerClient, kind: Kind
) -> None:
    def fail() -> None:
        with pytest.raises(TransportClosed):
            kind.open(client)

    opening = gevent.spawn(fail)
    asked = fake.wait_for(kind.opened_by)
    fake.current.drop()
    opening.get(timeout=20)
    ended = fake.wait_for(kind.closed_by)
    assert (ended.connection, ended.params) == (1, {kind.member: asked.params[kind.member]})


def test_a_close_whose_caller_is_interrupted_outlives_the_connection(
    fake: FakeServer, client: ExecServerClient, kind: Kind
) -> None:
    opening = gevent.spawn(kind.open, client)
    key = accept(fake, kind)
    del fake.answers[kind.closed_by]
    closing = gevent.spawn(opening.get(timeout=20).close)
    fake.wait_for(kind.closed_by)
    closing.kill()
    fake.current.drop()
    assert fake.wait_for(kind.closed_by, 2).params == {kind.member: key}


def test_who_waits_for_what_comes_of_it_waits_for_the_server(
    fake: FakeServer, client: ExecServerClient, kind: Kind
) -> None:
    opening = gevent.spawn(kind.open, client)
    accept(fake, kind)
    found = opening.get(timeout=20)
    inlet = Inlet()
    inlet.read_by(gevent.getcurrent())
    client._gate.update(inlet, client._options.max_unread_bytes + 1)
    assert client._gate.must_stop()
    waiting = gevent.spawn(kind.wait, found)
    inlet.read_by(waiting)
    turns()
    assert not client._gate.must_stop()
    waiting.kill()
    assert client._gate.must_stop()
