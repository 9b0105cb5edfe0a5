from __future__ import annotations

import os

import pytest

from execserver.eventloop.busy_poll import BusyPoll
from tests.support.greenlets import turns


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def poll(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> BusyPoll:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    return BusyPoll(1.0, clock)


def test_one_answer_does_not_keep_the_loop_awake(poll: BusyPoll) -> None:
    poll.handled()
    assert not poll.is_awake


def test_it_stays_awake_while_requests_follow_each_other(poll: BusyPoll, clock: Clock) -> None:
    for _ in range(4):
        poll.handled()
        turns()
        clock.now += 0.9
    assert poll.is_awake


def test_it_sleeps_when_no_request_has_come_for_the_limit(poll: BusyPoll, clock: Clock) -> None:
    poll.handled()
    poll.handled()
    turns()
    assert poll.is_awake
    clock.now += 1.0
    turns()
    assert not poll.is_awake


def test_requests_further_apart_than_the_limit_do_not_keep_it_awake(poll: BusyPoll, clock: Clock) -> None:
    for _ in range(4):
        poll.handled()
        clock.now += 1.0
    assert not poll.is_awake


def test_it_goes_on_after_it_has_slept(poll: BusyPoll, clock: Clock) -> None:
    poll.handled()
    poll.handled()
    clock.now += 5.0
    turns()
    poll.handled()
    assert not poll.is_awake
    poll.handled()
    assert poll.is_awake


def test_it_gives_the_processor_to_others(poll: BusyPoll, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[bool] = []
    monkeypatch.setattr(os, "sched_yield", lambda: given.append(poll.is_awake))
    poll.handled()
    poll.handled()
    turns()
    assert given
    assert all(given)


@pytest.mark.parametrize(("processors", "limit"), [(1, 1.0), (None, 1.0), (2, 0.0)])
def test_it_never_stays_awake(
    processors: int | None, limit: float, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    poll = BusyPoll(limit, clock)
    for _ in range(4):
        poll.handled()
    assert not poll.is_awake
