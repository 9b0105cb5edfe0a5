from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import gevent
import pytest

from execserver.eventloop import delay_queue as delay_queue_module
from execserver.eventloop.delay_queue import DelayQueue
from tests.support.waiting import wait_until


class Clock:
    """A clock that is moved by hand: the queue's timers fire early and find that nothing is due."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(delay_queue_module, "time", made)
    return made


class Queued:
    """A queue and what it acted on; `DELAY` is short, so that real timers follow the clock at once."""

    DELAY = 0.001

    def __init__(self) -> None:
        self.done: list[str] = []
        self.on_act: Callable[[str], None] = lambda _item: None
        self.queue: DelayQueue[str] = DelayQueue(self.DELAY, self._act)

    def _act(self, item: str) -> None:
        self.done.append(item)
        self.on_act(item)

    def wait_for(self, *items: str) -> None:
        wait_until(lambda: len(self.done) >= len(items), pause=gevent.sleep)
        assert self.done == list(items)


@pytest.fixture
def queued() -> Iterator[Queued]:
    made = Queued()
    yield made
    made.queue.close()


@pytest.mark.usefixtures("loop_failures")
def test_items_are_acted_on_once_in_their_order(queued: Queued) -> None:
    for item in "abc":
        queued.queue.add(item)
    assert len(queued.queue) == 3
    queued.wait_for("a", "b", "c")
    assert len(queued.queue) == 0
    queued.queue.add("d")
    queued.wait_for("a", "b", "c", "d")


@pytest.mark.usefixtures("loop_failures")
def test_nothing_is_done_before_its_time(queued: Queued, clock: Clock) -> None:
    queued.queue.add("early")
    clock.now += 0.0005
    queued.queue.add("late")
    gevent.sleep(0.003)  # timers fire meanwhile
    assert queued.done == []
    clock.now += 0.0006
    queued.wait_for("early")
    gevent.sleep(0.003)
    assert queued.done == ["early"]
    clock.now += 1
    queued.wait_for("early", "late")


@pytest.mark.usefixtures("loop_failures")
def test_adding_again_starts_the_time_anew(queued: Queued, clock: Clock) -> None:
    queued.queue.add("again")
    queued.queue.add("other")
    clock.now += 0.0009
    queued.queue.add("again")
    clock.now += 0.0009
    queued.wait_for("other")
    clock.now += 0.0009
    queued.wait_for("other", "again")


@pytest.mark.usefixtures("loop_failures")
def test_a_discarded_item_is_left_alone(queued: Queued) -> None:
    for item in "abc":
        queued.queue.add(item)
    queued.queue.discard("a")
    queued.queue.discard("c")
    queued.queue.discard("unknown")
    queued.wait_for("b")
    assert len(queued.queue) == 0


@pytest.mark.usefixtures("loop_failures")
def test_an_act_may_discard_what_is_due_too(queued: Queued, clock: Clock) -> None:
    for item in "abc":
        queued.queue.add(item)
    queued.on_act = lambda item: queued.queue.discard("b") if item == "a" else None
    clock.now += 1
    queued.wait_for("a", "c")


@pytest.mark.usefixtures("loop_failures")
def test_an_act_may_add_an_item_again(queued: Queued, clock: Clock) -> None:
    queued.queue.add("a")
    queued.on_act = queued.queue.add
    clock.now += 1
    queued.wait_for("a")
    assert len(queued.queue) == 1
    clock.now += 1
    queued.wait_for("a", "a")


def test_a_failing_act_does_not_stop_the_others(queued: Queued, loop_failures: list[str]) -> None:
    def fail(item: str) -> None:
        if item == "a":
            raise KeyError(item)

    queued.on_act = fail
    for item in "abc":
        queued.queue.add(item)
    queued.wait_for("a", "b", "c")
    assert len(loop_failures) == 1
    loop_failures.clear()


@pytest.mark.usefixtures("loop_failures")
def test_closing_forgets_everything(queued: Queued) -> None:
    queued.queue.add("a")
    queued.queue.close()
    gevent.sleep(0.003)
    assert (queued.done, len(queued.queue)) == ([], 0)


@pytest.mark.parametrize("how", ["acted on", "discarded", "closed"])
def test_nothing_holds_an_item_afterwards(how: str) -> None:
    class Item:
        """Something that can be watched."""

    done: list[int] = []
    queue: DelayQueue[Item] = DelayQueue(0.001, lambda _item: done.append(1))
    item = Item()
    watched = weakref.ref(item)
    queue.add(item)
    if how == "acted on":
        wait_until(lambda: done, pause=gevent.sleep)
    elif how == "discarded":
        queue.discard(item)
    else:
        queue.close()
    del item
    gc.collect()
    assert watched() is None
    queue.close()


@pytest.mark.usefixtures("loop_failures")
def test_items_that_come_and_go_leave_the_timer_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Queued()
    armed: list[object] = []
    arm = made.queue._arm
    monkeypatch.setattr(made.queue, "_arm", lambda: armed.append(arm()))
    for item in "abc":
        made.queue.add(item)
        made.queue.discard(item)
    assert len(armed) == 1
    made.queue.add("d")
    made.wait_for("d")
    made.queue.close()
