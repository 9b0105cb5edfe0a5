"""Pieces of a forwarded connection that go out without waiting, over the fake server: bounds, losses."""

from __future__ import annotations

import base64
from typing import Any

import gevent
import pytest

from execserver.client import ExecServerClient, InvalidRequestError, ProtocolViolation
from execserver.client.errors import ExecServerError
from execserver.client.greenlets.quick_pieces import QuickPieces
from execserver.client.ports import Opened, PortStream
from execserver.client.rules.request_window import WINDOW_REQUESTS
from execserver.protocol.environment import Extensions
from tests.client.fake_server import FakeServer, Refusal, Unanswered, drop
from tests.support.greenlets import turns

WINDOW = 100
HERE = {"host": "127.0.0.1", "port": 7}


@pytest.fixture(autouse=True)
def a_server_that_forwards(
    fake: FakeServer, client: ExecServerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.sends_at_once = True
    monkeypatch.setattr(type(client._session), "extensions", Extensions(port_forward="loopback"))
    fake.answers |= {
        "port/open": lambda _: {"portId": "p", "address": HERE, "windowBytes": WINDOW},
        "port/close": lambda _: {},
        "port/data": _unanswered,
    }


class Sender:
    """One stream with the pieces of a test, and how often they have asked for attention."""

    def __init__(self, client: ExecServerClient) -> None:
        self.calls = 0
        self.stream: PortStream = client.ports.open("127.0.0.1", 7)
        self.quick: QuickPieces = self.stream.follow(len, self._called)

    def _called(self) -> None:
        self.calls += 1


@pytest.fixture
def sender(client: ExecServerClient) -> Sender:
    return Sender(client)


def _unanswered(params: Any) -> object:
    raise Unanswered


def sent(fake: FakeServer) -> list[tuple[int, bytes, bool]]:
    asked = [one.params for one in fake.asked("port/data")]
    return [(each["offset"], base64.b64decode(each["chunk"]), each["eof"]) for each in asked]


def test_pieces_go_out_one_behind_the_other_without_an_answer(sender: Sender, fake: FakeServer) -> None:
    assert all(sender.quick.send(b"%x" % number) for number in range(WINDOW_REQUESTS))
    assert sent(fake) == [(number, b"%x" % number, False) for number in range(WINDOW_REQUESTS)]
    assert not sender.quick.send(b"one too many")
    fake.current.reply(fake.asked("port/data")[0].call_id, {"received": 1})
    turns()
    assert sender.quick.send(b"", eof=True)
    assert sent(fake)[-1] == (WINDOW_REQUESTS, b"", True)
    assert (sender.calls, sender.quick.is_settled) == (0, False)


def test_no_more_goes_out_than_the_window_has_room_for(sender: Sender, fake: FakeServer) -> None:
    assert not sender.quick.send(bytes(WINDOW // 4 + 1))  # to be cut, so that some pieces fit
    assert all(sender.quick.send(bytes(WINDOW // 4)) for _ in range(4))
    assert not sender.quick.send(b"x")
    fake.current.reply(fake.asked("port/data")[0].call_id, {"received": WINDOW // 4})
    turns()
    assert sender.quick.send(b"x")
    assert [offset for offset, _, _ in sent(fake)] == [0, 25, 50, 75, 100]


def test_attention_is_asked_for_once_all_are_answered(sender: Sender, fake: FakeServer) -> None:
    assert sender.quick.send(b"a")
    assert sender.quick.send(b"b")
    for asked, calls in zip(fake.asked("port/data"), (0, 1), strict=True):
        fake.current.reply(asked.call_id, {"received": 1})
        turns()
        assert sender.calls == calls
    assert sender.quick.is_settled
    assert not sender.quick.needs_finish


def test_what_was_lost_is_sent_again_before_what_comes_next(sender: Sender, fake: FakeServer) -> None:
    assert sender.quick.send(b"a")
    assert sender.quick.send(b"b")
    fake.answers["port/resume"] = lambda _: {"received": 0}
    fake.answers["port/data"] = lambda _: {"received": 3}
    drop(fake)
    assert (sender.quick.needs_finish, sender.quick.is_settled) == (True, False)
    assert not sender.quick.send(b"c")
    sender.stream.send_all([b"c"])
    again = sent(fake)[2:]
    assert again[-1] == (2, b"c", False)
    assert set(again[:-1]) == {(0, b"a", False), (1, b"b", False)}
    assert sender.quick.send(b"d")


def test_who_sends_next_waits_for_the_answers(sender: Sender, fake: FakeServer) -> None:
    assert sender.quick.send(b"a")
    fake.answers["port/data"] = lambda _: {"received": 2}
    sending = gevent.spawn(sender.stream.send, b"b")
    turns()
    assert sent(fake) == [(0, b"a", False)]
    fake.current.reply(fake.asked("port/data")[0].call_id, {"received": 1})
    sending.get(timeout=20)
    assert sent(fake) == [(0, b"a", False), (1, b"b", False)]


def test_a_refusal_is_kept_for_who_sends_next(sender: Sender, fake: FakeServer) -> None:
    def refuse(_: Any) -> object:
        raise Refusal(-32600, "unknown port")

    fake.answers["port/data"] = refuse
    assert sender.quick.send(b"a")
    turns()
    assert (sender.calls, sender.quick.needs_finish) == (1, True)
    assert not sender.quick.send(b"b")
    with pytest.raises(InvalidRequestError, match="unknown port"):
        sender.stream.shutdown()


def test_an_answer_that_is_none_is_kept_for_who_sends_next(sender: Sender, fake: FakeServer) -> None:
    fake.answers["port/data"] = lambda _: {"received": "all"}
    assert sender.quick.send(b"a")
    turns()
    with pytest.raises(ProtocolViolation):
        sender.quick.finish()


def test_where_nothing_goes_at_once_nothing_is_sent_and_no_hole_is_left(
    sender: Sender, fake: FakeServer
) -> None:
    fake.sends_at_once = False
    assert not sender.quick.send(b"a")
    assert sent(fake) == []
    fake.answers["port/data"] = lambda _: {"received": 1}
    sender.stream.send(b"b")
    assert sent(fake) == [(0, b"b", False)]


class TestOpening:
    """Openings for which nobody waits."""

    def opened(self, client: ExecServerClient, first: bytes = b"") -> list[Opened | ExecServerError]:
        found: list[Opened | ExecServerError] = []
        assert client.ports.open_at_once("127.0.0.1", 7, first, found.append)
        return found

    def test_the_stream_comes_with_what_the_server_has_not_taken(
        self, client: ExecServerClient, fake: FakeServer
    ) -> None:
        answer = {"portId": "p", "address": HERE, "windowBytes": WINDOW, "received": 2}
        fake.answers["port/open"] = lambda _: answer
        found = self.opened(client, b"first")
        assert found == []
        turns()
        ((stream, rest),) = found  # type: ignore[misc]
        assert (rest, stream.address.port, stream.port_id in client.ports._streams) == (b"rst", 7, True)

    def test_a_refusal_is_told_and_nothing_is_left(self, client: ExecServerClient, fake: FakeServer) -> None:
        def refuse(_: Any) -> object:
            raise Refusal(-32600, "no room")

        fake.answers["port/open"] = refuse
        (error,) = _after_turns(self.opened(client))
        assert isinstance(error, InvalidRequestError)
        assert (client.ports._streams, fake.asked("port/close")) == ({}, [])

    @pytest.mark.parametrize(
        "answer", [{}, {"portId": "p", "address": HERE, "windowBytes": 1, "received": 9}]
    )
    def test_what_may_be_open_is_closed_again(
        self, client: ExecServerClient, fake: FakeServer, answer: dict[str, object]
    ) -> None:
        fake.answers["port/open"] = lambda _: answer
        (error,) = _after_turns(self.opened(client))
        assert isinstance(error, ProtocolViolation)
        assert fake.wait_for("port/close").params == {"portId": fake.asked("port/open")[0].params["portId"]}
        assert client.ports._streams == {}

    def test_a_lost_opening_is_closed_on_the_next_connection(
        self, client: ExecServerClient, fake: FakeServer
    ) -> None:
        fake.answers["port/open"] = _unanswered
        found = self.opened(client)
        drop(fake)
        (error,) = found
        assert isinstance(error, ExecServerError)
        assert fake.wait_for("port/close").connection == 1

    def test_where_nothing_goes_at_once_nothing_is_asked(
        self, client: ExecServerClient, fake: FakeServer
    ) -> None:
        fake.sends_at_once = False
        assert not client.ports.open_at_once("127.0.0.1", 7, b"", print)
        assert (fake.asked("port/open"), client.ports._streams) == ([], {})


def _after_turns(found: list[Opened | ExecServerError]) -> list[Opened | ExecServerError]:
    turns()
    return found
