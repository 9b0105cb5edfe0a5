"""Threads for file calls: results, time limits, and what happens when all of them hang."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator

import gevent
import pytest
from gevent.event import Event

from execserver.protocol.errors import InternalError
from execserver.services.file_pool import FilePool
from tests.support.waiting import wait_until

Pause = Callable[[], None]


class Hang:
    """A call that hangs in its thread until the test lets it go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.release = threading.Event()

    def __call__(self, _: Pause) -> str:
        self.entered.set()
        self.release.wait(30)
        return "late"


@pytest.fixture
def hang() -> Iterator[Hang]:
    call = Hang()
    yield call
    call.release.set()


def test_a_result_comes_back_from_another_thread() -> None:
    pool = FilePool(2, 5.0)
    here = threading.get_ident()
    assert pool.call(lambda _: threading.get_ident()) != here
    assert pool.call(lambda _: None) is None


def test_an_error_comes_back_as_it_was() -> None:
    error = OSError(errno.ENOENT, "x")

    def fail(_: Pause) -> None:
        raise error

    with pytest.raises(OSError) as caught:
        FilePool(1, 5.0).call(fail)
    assert caught.value is error


def test_other_greenlets_run_while_a_thread_works(hang: Hang) -> None:
    pool = FilePool(1, 5.0)
    waiting = gevent.spawn(pool.call, hang)
    wait_until(hang.entered.is_set, pause=gevent.sleep)
    assert not waiting.ready()
    hang.release.set()
    assert waiting.get(timeout=20) == "late"


def test_a_call_without_progress_is_given_up(hang: Hang) -> None:
    with pytest.raises(OSError) as caught:
        FilePool(1, 0.05).call(hang)
    assert caught.value.errno == errno.ETIMEDOUT


def test_progress_keeps_a_call_alive() -> None:
    step = threading.Event()

    def work(pause: Pause) -> str:
        for _ in range(8):
            step.wait(0.1)
            pause()
        return "done"

    assert FilePool(1, 0.7).call(work) == "done"


def test_a_call_that_was_given_up_ends_at_its_next_pause() -> None:
    ended = threading.Event()
    go_on = threading.Event()

    def work(pause: Pause) -> None:
        try:
            go_on.wait(30)
            pause()
        except BaseException:
            ended.set()
            raise

    with pytest.raises(OSError, match="timed out"):
        FilePool(1, 0.05).call(work)
    go_on.set()
    wait_until(ended.is_set, pause=gevent.sleep)


def test_when_all_threads_hang_calls_are_refused_at_once_until_one_returns(hang: Hang) -> None:
    pool = FilePool(1, 0.05)
    with pytest.raises(OSError, match="timed out"):
        pool.call(hang)
    with pytest.raises(InternalError, match="all 1 file threads hang"):
        pool.call(lambda _: None)
    hang.release.set()

    def works() -> bool:
        try:
            return pool.call(lambda _: True)
        except InternalError:
            return False

    wait_until(works, pause=gevent.sleep)


def test_calls_wait_in_line_while_threads_are_merely_busy(hang: Hang) -> None:
    pool = FilePool(1, 5.0)
    first = gevent.spawn(pool.call, hang)
    wait_until(hang.entered.is_set, pause=gevent.sleep)
    second = gevent.spawn(pool.call, lambda _: "second")
    gevent.idle()
    assert not second.ready()
    hang.release.set()
    assert first.get(timeout=20) == "late"
    assert second.get(timeout=20) == "second"


def test_no_free_thread_in_time_is_a_timeout(hang: Hang) -> None:
    pool = FilePool(1, 0.2)
    first = gevent.spawn(lambda: pool.call(hang))
    wait_until(hang.entered.is_set, pause=gevent.sleep)
    started = Event()
    # The second one waits for the slot of the first, which is given up later than the second.
    pool._timeout_s = 0.01
    with pytest.raises(OSError) as caught:
        pool.call(lambda _: started.set())
    assert caught.value.errno == errno.ETIMEDOUT
    assert not started.is_set()
    hang.release.set()
    first.join()


def test_a_result_that_nobody_waits_for_is_discarded(hang: Hang) -> None:
    discarded: list[str] = []
    pool = FilePool(1, 0.05)
    with pytest.raises(OSError, match="timed out"):
        pool.call(hang, discarded.append)
    assert discarded == []
    hang.release.set()
    wait_until(lambda: discarded, pause=gevent.sleep)
    assert discarded == ["late"]


def test_a_caller_that_is_killed_leaves_the_thread_to_end_by_itself(hang: Hang) -> None:
    discarded: list[str] = []
    pool = FilePool(1, 5.0)
    caller = gevent.spawn(pool.call, hang, discarded.append)
    wait_until(hang.entered.is_set, pause=gevent.sleep)
    caller.kill()
    hang.release.set()
    wait_until(lambda: discarded, pause=gevent.sleep)
    assert pool.call(lambda _: "again") == "again"
