"""The clock of a call, with time that is moved by hand.  The cases are those recorded of the reference."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.mcp.call_timer import CallTimer

MS = 1_000_000


def test_it_runs_from_the_start_and_expires_at_the_limit() -> None:
    watch = CallTimer(500 * MS, now_ns=1000)
    assert not watch.expired(1000 + 500 * MS - 1)
    assert watch.remaining_ns(1000 + 499 * MS) == MS
    assert watch.expired(1000 + 500 * MS)
    assert watch.remaining_ns(1000 + 900 * MS) == 0
    assert watch.elapsed_ns(1000 + 900 * MS) == 900 * MS


def test_a_limit_of_zero_is_up_at_once() -> None:
    assert CallTimer(0, now_ns=7).expired(7)


def test_without_a_limit_it_never_expires() -> None:
    watch = CallTimer(None, now_ns=0)
    assert watch.remaining_ns(10**18) is None
    assert not watch.expired(10**18)


def test_a_limit_of_800_ms_outlives_a_prompt_of_1500_ms() -> None:
    watch = CallTimer(800 * MS, now_ns=0)
    watch.pause(100 * MS)
    assert watch.paused
    assert not watch.expired(1600 * MS)
    assert watch.remaining_ns(1600 * MS) == 700 * MS
    watch.resume(1600 * MS)
    assert watch.elapsed_ns(1650 * MS) == 150 * MS


def test_work_after_a_prompt_counts_again() -> None:
    watch = CallTimer(800 * MS, now_ns=0)
    watch.pause(0)
    watch.resume(1500 * MS)
    assert not watch.expired(2299 * MS)
    assert watch.expired(2300 * MS)


def test_overlapping_prompts_pause_until_the_longer_one_is_answered() -> None:
    watch = CallTimer(700 * MS, now_ns=0)
    watch.pause(10 * MS)
    watch.pause(20 * MS)
    watch.resume(800 * MS)
    assert not watch.expired(1800 * MS)
    watch.resume(1800 * MS)
    assert watch.elapsed_ns(1800 * MS) == 10 * MS
    assert watch.expired(2490 * MS)


def test_three_stretches_of_300_ms_with_prompts_between_stay_below_1000_ms() -> None:
    watch = CallTimer(1000 * MS, now_ns=0)
    now = 0
    for _ in range(3):
        now += 300 * MS
        assert not watch.expired(now)
        watch.pause(now)
        now += 1500 * MS
        watch.resume(now)
    assert watch.elapsed_ns(now) == 900 * MS
    assert not watch.expired(now + 99 * MS)
    assert watch.expired(now + 100 * MS)


def test_a_prompt_that_is_never_answered_pauses_for_ever() -> None:
    watch = CallTimer(1, now_ns=0)
    watch.pause(0)
    assert not watch.expired(10**18)


def test_an_end_without_a_pause_is_a_mistake() -> None:
    watch = CallTimer(None, now_ns=0)
    with pytest.raises(ValueError, match="not paused"):
        watch.resume(1)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 1000)), max_size=30))
def test_running_time_is_the_time_without_an_open_pause(events: list[tuple[bool, int]]) -> None:
    watch = CallTimer(None, now_ns=0)
    now = running = pauses = 0
    for begin, wait in events:
        running += wait if not pauses else 0
        now += wait
        if begin:
            watch.pause(now)
            pauses += 1
        elif pauses:
            watch.resume(now)
            pauses -= 1
        assert watch.elapsed_ns(now) == running
        assert watch.paused == bool(pauses)
