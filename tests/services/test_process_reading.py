from __future__ import annotations

import gevent
import pytest

from tests.services.played import Play
from tests.support.greenlets import turns

pytestmark = pytest.mark.usefixtures("loop_failures")


@pytest.mark.parametrize("news", ["output", "exit", "close"])
def test_a_waiting_read_is_woken_by_news(play: Play, news: str) -> None:
    one = play()
    seen = 0
    if news == "close":
        one.far.close("stdout")
        one.far.exit()
        seen = 1
    readers = [gevent.spawn(one.process.wait_for_news, seen, 60.0) for _ in range(2)]
    turns()
    assert not any(reader.ready() for reader in readers)
    if news == "output":
        one.far.write("stdout", b"x")
    elif news == "exit":
        one.far.exit()
    else:
        one.far.close()
    gevent.joinall(readers, timeout=20)
    assert all(reader.ready() for reader in readers)


def test_a_read_does_not_wait_when_there_is_something(play: Play) -> None:
    one = play()
    one.far.write("stdout", b"x")
    one.process.wait_for_news(0, 60.0)


def test_news_that_a_read_has_seen_is_none(play: Play) -> None:
    one = play()
    one.far.write("stdout", b"x")
    reader = gevent.spawn(one.process.wait_for_news, 1, 60.0)
    turns()
    assert not reader.ready()
    one.far.write("stderr", b"y")
    reader.get(timeout=20)


def test_a_read_waits_for_its_time_only(play: Play) -> None:
    play().process.wait_for_news(0, 0.005)
    play().process.wait_for_news(0, 0.0)


def test_the_longest_wait_of_the_contract_is_a_wait(play: Play) -> None:
    one = play()
    reader = gevent.spawn(one.process.wait_for_news, 0, (2**64 - 1) / 1000)
    turns()
    assert not reader.ready()
    one.far.exit()
    reader.get(timeout=20)
