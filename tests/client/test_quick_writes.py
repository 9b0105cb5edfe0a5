"""Writes that go out without waiting, over the fake server: the window, losses, refusals."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import gevent
import pytest
from gevent.event import Event

from execserver.client import RemoteProcess, StdinUnavailable
from execserver.client.greenlets.quick_writes import SHORT_BYTES, QuickWrites
from execserver.client.rules.request_window import WINDOW_REQUESTS
from tests.client.fake_server import FakeServer, Unanswered, drop

ACCEPTED = {"status": "accepted"}


class Typist:
    """The writes of a test, and how often they have asked for attention."""

    def __init__(self, process: RemoteProcess) -> None:
        self.called = Event()
        self.quick: QuickWrites = process.quick_writes(self.called.set)


@pytest.fixture
def typist(fake: FakeServer, process: RemoteProcess) -> Typist:
    fake.sends_at_once = True
    fake.answers["process/write"] = _unanswered
    return Typist(process)


def _unanswered(params: Any) -> object:
    raise Unanswered


def _status(status: str) -> Callable[[Any], object]:
    return lambda params: {"status": status}


def _written(fake: FakeServer) -> list[bytes]:
    return [base64.b64decode(request.params["chunk"]) for request in fake.asked("process/write")]


class TestSending:
    def test_writes_go_out_one_behind_the_other_without_an_answer(
        self, typist: Typist, fake: FakeServer
    ) -> None:
        keys = [b"%d" % number for number in range(WINDOW_REQUESTS)]
        assert all(typist.quick.send(key) for key in keys)
        assert _written(fake) == keys
        assert not typist.quick.send(b"one too many")
        assert _written(fake) == keys

    def test_an_answer_makes_room(self, typist: Typist, fake: FakeServer) -> None:
        for _ in range(WINDOW_REQUESTS):
            assert typist.quick.send(b"x")
        fake.current.reply(fake.asked("process/write")[0].call_id, ACCEPTED)
        gevent.idle()
        assert typist.quick.send(b"y")
        assert not typist.quick.needs_finish

    @pytest.mark.parametrize("data", [b"", b"x" * (SHORT_BYTES + 1)])
    def test_what_is_empty_or_long_is_left_to_write(
        self, typist: Typist, fake: FakeServer, data: bytes
    ) -> None:
        assert not typist.quick.send(data)
        assert _written(fake) == []

    def test_a_transport_that_cannot_leaves_it_to_write(self, typist: Typist, fake: FakeServer) -> None:
        fake.sends_at_once = False
        assert not typist.quick.send(b"x")
        typist.quick.finish()
        assert _written(fake) == []


class TestFinishing:
    def test_it_waits_for_all_answers(self, typist: Typist, fake: FakeServer) -> None:
        assert typist.quick.send(b"a")
        assert typist.quick.send(b"b")
        finishing = gevent.spawn(typist.quick.finish)
        first, second = fake.asked("process/write")
        fake.current.reply(first.call_id, ACCEPTED)
        gevent.idle()
        assert not finishing.ready()
        fake.current.reply(second.call_id, ACCEPTED)
        finishing.get(timeout=20)

    def test_what_was_lost_is_sent_again_in_order_with_the_same_ids(
        self, typist: Typist, fake: FakeServer
    ) -> None:
        for key in (b"a", b"b", b"c"):
            assert typist.quick.send(key)
        before = fake.asked("process/write")
        fake.current.reply(before[0].call_id, ACCEPTED)
        gevent.idle()
        fake.answers["process/write"] = _status("accepted")
        fake.answers["process/read"] = _unanswered
        drop(fake)
        assert typist.called.wait(20)
        assert not typist.quick.send(b"d")  # behind what was lost
        typist.quick.finish()
        again = fake.asked("process/write")[3:]
        assert [each.params for each in again] == [each.params for each in before[1:]]
        assert typist.quick.send(b"d")

    @pytest.mark.parametrize("status", ["stdinClosed", "unknownProcess", "starting"])
    def test_a_refused_write_is_told(self, typist: Typist, fake: FakeServer, status: str) -> None:
        fake.answers["process/write"] = _status(status)
        assert typist.quick.send(b"a")
        assert typist.called.wait(20)
        assert not typist.quick.send(b"b")
        with pytest.raises(StdinUnavailable):
            typist.quick.finish()

    def test_what_is_sent_again_and_refused_is_told(self, typist: Typist, fake: FakeServer) -> None:
        assert typist.quick.send(b"a")
        fake.answers["process/write"] = _status("stdinClosed")
        fake.answers["process/read"] = _unanswered
        drop(fake)
        assert typist.called.wait(20)
        with pytest.raises(StdinUnavailable):
            typist.quick.finish()
