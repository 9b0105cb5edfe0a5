"""Ephemeral keys made ahead: bounded, each given out once, none of them old."""

from __future__ import annotations

from collections.abc import Iterator

import gevent
import pytest

from execserver.remote.prepared_keys import KEPT_PAIRS, KEPT_S, PreparedKeys
from tests.support.waiting import wait_until


class Clock:
    """A time that is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def prepared(clock: Clock) -> Iterator[PreparedKeys]:
    """Keys that were asked for and are all there."""
    prepared = PreparedKeys(clock)
    assert prepared.count == 0
    prepared.prepare()
    wait_until(lambda: prepared.count == KEPT_PAIRS, pause=gevent.sleep)
    yield prepared
    prepared.clear()


def test_there_are_never_more_than_the_bound(prepared: PreparedKeys) -> None:
    prepared.prepare()
    gevent.sleep(0.05)
    assert prepared.count == KEPT_PAIRS


def test_each_pair_is_given_out_once_and_replaced(prepared: PreparedKeys) -> None:
    given = [prepared.ephemeral() for _ in range(3 * KEPT_PAIRS)]
    assert len({each.public for each in given}) == 3 * KEPT_PAIRS
    assert prepared.count == 0
    wait_until(lambda: prepared.count == KEPT_PAIRS, pause=gevent.sleep)
    assert {prepared.ephemeral().public for _ in range(KEPT_PAIRS)}.isdisjoint(each.public for each in given)


def test_an_old_pair_is_thrown_away(prepared: PreparedKeys, clock: Clock) -> None:
    clock.now += KEPT_S
    before = prepared.count
    assert before == KEPT_PAIRS
    prepared.ephemeral()
    assert prepared.count == 0


def test_cleared_keys_are_gone_and_no_others_come(prepared: PreparedKeys) -> None:
    prepared.ephemeral()
    prepared.clear()
    assert prepared.count == 0
    gevent.sleep(0.05)
    assert prepared.count == 0
    assert prepared.ephemeral().public.x25519
