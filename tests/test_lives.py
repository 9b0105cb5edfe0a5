"""The tool that finds what only a collection would free finds it, and nothing else."""

from __future__ import annotations

import gc
import threading
from typing import Any

import gevent
import pytest
from gevent.threadpool import ThreadPool

from tests.support.lives import assert_freed, left_by

LIVES = 20
Thing = type("Thing", (), {"__module__": "execserver.made_up"})
Foreign = type("Foreign", (), {"__module__": "elsewhere"})


def cycle(of: type) -> None:
    first: Any = of()
    second: Any = of()
    first.other, second.other = second, first


def test_what_is_freed_by_its_reference_count_is_not_found() -> None:
    def life(_: int) -> None:
        things = Thing(), Foreign(), gevent.spawn(gevent.sleep)
        things[-1].join()

    left = left_by(life, 1000)
    assert (left.ours, left.foreign) == ({}, {})
    assert left.blocks_per_life < 1


def test_a_cycle_is_found_and_shown() -> None:
    with pytest.raises(AssertionError, match=r"cycle our execserver\.made_up\.Thing -> .* -> our exec"):
        assert_freed(lambda _: cycle(Thing), LIVES)
    assert gc.isenabled()


def test_a_cycle_of_foreign_objects_is_found_unless_it_is_expected() -> None:
    with pytest.raises(AssertionError, match=r"\{\} of ours and \{'elsewhere\.Foreign': 40"):
        assert_freed(lambda _: cycle(Foreign), LIVES)
    assert_freed(lambda _: cycle(Foreign), LIVES, foreign=["elsewhere.Foreign", "builtins.dict"])


def test_what_hangs_on_something_living_is_found_with_its_holder() -> None:
    kept: list[object] = []
    with pytest.raises(AssertionError, match=r"Thing: no cycle; held by .*builtins\.list"):
        assert_freed(lambda _: kept.append(Thing()), LIVES)


def test_what_the_collector_does_not_track_shows_in_the_blocks() -> None:
    kept: list[bytes] = []
    assert left_by(lambda number: kept.append(b"%020d" % number), 1000).blocks_per_life >= 1


def test_a_greenlet_that_was_killed_is_found_with_what_its_traceback_holds() -> None:
    kept: list[object] = []
    left = left_by(lambda _: kept.append(killed()), LIVES)
    found = {kind.rpartition(".")[2]: count for kind, count in left.ours.items()}
    assert (found["Greenlet"], found["GreenletExit"], found["timer"]) == (LIVES, LIVES, LIVES)
    assert found["traceback"] >= LIVES


def killed() -> gevent.Greenlet[[float], None]:
    sleeper = gevent.spawn(gevent.sleep, 10)
    gevent.sleep(0)  # one turn, in which it falls asleep
    sleeper.kill()
    return sleeper


@pytest.mark.keeps_open("the loop keeps how a thread wakes it")
def test_threads_that_a_pool_has_made_are_not_found() -> None:
    pool = ThreadPool(2)
    try:

        def overlap(number: int) -> None:
            both = threading.Barrier(2 if number >= 0 else 1)
            for waiting in [pool.spawn(both.wait, 10) for _ in range(both.parties)]:
                waiting.get()

        left = left_by(overlap, LIVES)
        assert (left.ours, pool.size) == ({}, 2)
    finally:
        pool.kill()
