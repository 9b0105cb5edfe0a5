from __future__ import annotations

import time

import gevent
import pytest
from gevent.event import Event

from execserver.eventloop.deadline import at_most
from tests.support.lives import assert_freed


def test_a_block_that_is_done_in_time_is_run_whole() -> None:
    reached = []
    with at_most(60):
        gevent.sleep(0)
        reached.append("end")
    assert reached == ["end"]


def test_a_block_that_waits_too_long_is_left() -> None:
    reached = []
    with at_most(0.005):
        reached.append("begin")
        Event().wait()
        reached.append("end")
    assert reached == ["begin"]


def test_no_time_leaves_at_the_first_wait() -> None:
    reached = []
    with at_most(0):
        reached.append("begin")
        Event().wait()
        reached.append("end")
    assert reached == ["begin"]


def test_the_time_ends_with_the_block() -> None:
    with at_most(0.001):
        pass
    gevent.sleep(0.005)


def test_an_outer_time_that_ends_first_leaves_both_blocks() -> None:
    reached = []
    with at_most(0.005):
        with at_most(60):
            Event().wait()
        reached.append("inner left alone")
    assert reached == []


def test_an_inner_time_leaves_the_inner_block_only() -> None:
    reached = []
    with at_most(60):
        with at_most(0.001):
            Event().wait()
        reached.append("inner left alone")
    assert reached == ["inner left alone"]


def test_errors_pass() -> None:
    with pytest.raises(KeyError), at_most(60):
        raise KeyError
    with pytest.raises(gevent.Timeout), at_most(60), gevent.Timeout(0.001):
        Event().wait()


def test_time_that_was_not_spent_waiting_is_not_cut() -> None:
    reached = []
    with at_most(0.001):
        end = time.monotonic() + 0.005
        while time.monotonic() < end:
            pass
        reached.append("end")
    assert reached == ["end"]


def test_a_deadline_that_passes_leaves_nothing() -> None:
    def life(number: int) -> None:
        with at_most(0.0):
            Event().wait()

    assert_freed(life, 50)
