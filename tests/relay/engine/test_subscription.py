"""Lines of channels: none is missed while connected, and a gap is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import gevent
import pytest

from execserver.relay.engine import subscription
from execserver.relay.engine.subscription import Subscription
from execserver.relay.errors import EngineSilent
from tests.relay.engine.scripted import until
from tests.support.engine_process import EngineProcess


class Heard:
    """What a subscription has told."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self.connected = 0

    def line(self, channel: str, line: str) -> None:
        self.lines.append((channel, line))

    def connect(self) -> None:
        self.connected += 1

    def wait(self, count: int, *, connected: int = 1) -> None:
        until(lambda: len(self.lines) >= count and self.connected >= connected)


@contextmanager
def subscribed(process: EngineProcess, heard: Heard) -> Iterator[Subscription]:
    made = Subscription(process.dialer(), ("node:n1", "tokens"), heard.line, heard.connect)
    made.start()
    try:
        heard.wait(0)
        yield made
    finally:
        made.close()
        gevent.sleep(0.01)


def test_lines_arrive_in_their_order(process: EngineProcess) -> None:
    heard = Heard()
    with subscribed(process, heard) as made:
        assert made.is_ready.is_set()
        for number in range(3):
            process.ask("PUBLISH", "node:n1", f"line {number}")
        process.ask("PUBLISH", "node:n2", "another's")
        process.ask("PUBLISH", "tokens", "id")
        heard.wait(4)
    assert heard.lines == [*(("node:n1", f"line {number}") for number in range(3)), ("tokens", "id")]


def test_whoever_listens_for_a_while_is_woken_by_a_line(process: EngineProcess) -> None:
    heard = Heard()
    with subscribed(process, heard) as made:
        with made.listening("arr:box") as one, made.listening("arr:box") as two:
            assert one is two
            assert one.is_open.wait(20)
            news = one.news
            process.ask("PUBLISH", "arr:box", "n1")
            assert news.wait(20)
            assert not one.news.is_set()  # the next line has an event of its own
        until(lambda: process.ask("PUBSUB", "CHANNELS", "arr:*") == b"*0\r\n")
    assert heard.lines == []


def test_too_many_listeners_are_refused(process: EngineProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription, "_MAX_LISTENED", 1)
    with (
        subscribed(process, Heard()) as made,
        made.listening("arr:a"),
        made.listening("arr:a"),
        pytest.raises(EngineSilent),
        made.listening("arr:b"),
    ):
        pass


def test_a_lost_connection_is_made_again_told_and_listens_as_before(process: EngineProcess) -> None:
    heard = Heard()
    with subscribed(process, heard) as made, made.listening("arr:box") as arrivals:
        process.ask("CLIENT", "KILL", "TYPE", "pubsub")
        heard.wait(0, connected=2)
        assert arrivals.is_open.wait(20)
        process.ask("PUBLISH", "node:n1", "after")
        heard.wait(1)
    assert heard.lines == [("node:n1", "after")]


def test_an_engine_that_answers_no_ping_counts_as_lost(
    process: EngineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "_PING_S", 0.1)
    monkeypatch.setattr(subscription, "_SILENT_S", 0.4)
    heard = Heard()
    with subscribed(process, heard) as made:
        process.pause()
        try:
            until(lambda: not made.is_ready.is_set())
        finally:
            process.go_on()
        heard.wait(0, connected=2)


def test_a_connection_is_given_up_for_a_new_one_when_asked(process: EngineProcess) -> None:
    heard = Heard()
    with subscribed(process, heard) as made:
        made.connect_again()
        heard.wait(0, connected=2)
        process.ask("PUBLISH", "node:n1", "after")
        heard.wait(1)
    assert heard.lines == [("node:n1", "after")]
