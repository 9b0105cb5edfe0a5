"""Work is done at once, beside other work, by greenlets that are used again."""

from __future__ import annotations

import gc
import weakref

import gevent
import pytest
from gevent.event import Event
from gevent.hub import get_hub

from execserver.eventloop import workers as module
from execserver.eventloop.workers import Workers
from tests.support.greenlets import turns


class Scene:
    """Work that says which greenlet does it."""

    def __init__(self) -> None:
        self.workers = Workers()
        self.done: list[object] = []
        self.go_on = Event()

    def quick(self) -> None:
        self.done.append(gevent.getcurrent())

    def slow(self) -> None:
        self.done.append("begun")
        try:
            self.go_on.wait()
            self.done.append("done")
        finally:
            self.done.append("over")


def test_a_callback_of_the_loop_sees_the_first_part_done() -> None:
    scene = Scene()
    seen: list[list[object]] = []

    def callback() -> None:
        scene.workers.start(scene.slow)
        seen.append(list(scene.done))

    get_hub().loop.run_callback(callback)
    turns()
    assert seen == [["begun"]]
    scene.go_on.set()
    turns()
    assert scene.done == ["begun", "done", "over"]


def test_one_greenlet_does_one_piece_after_the_other_and_waiting_ones_are_left_alone() -> None:
    scene = Scene()
    for _ in range(3):
        scene.workers.start(scene.quick)
        turns()
    assert len(set(scene.done)) == 1
    scene.workers.start(scene.slow)
    turns()
    scene.workers.start(scene.quick)
    turns()
    assert len(set(scene.done) - {"begun"}) == 2
    scene.go_on.set()
    turns()


def test_no_more_than_some_idle_greenlets_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_IDLE", 2)
    scene = Scene()
    for _ in range(5):
        scene.workers.start(scene.slow)
    turns()
    scene.go_on.set()
    turns()
    assert scene.done.count("over") == 5
    assert len(scene.workers._idle) == 2


def test_killed_work_ends_and_later_work_is_not_hit() -> None:
    scene = Scene()
    killed = scene.workers.start(scene.slow)
    turns()
    killed.kill()
    turns()
    assert scene.done == ["begun", "over"]
    killed.kill()
    scene.workers.start(scene.slow)
    turns()
    scene.go_on.set()
    turns()
    assert scene.done == ["begun", "over", "begun", "done", "over"]


def test_work_that_is_killed_at_once_ends_where_it_first_waits() -> None:
    scene = Scene()
    scene.workers.start(scene.slow).kill()
    scene.workers.start(scene.quick).kill()
    turns()
    assert [scene.done[0], len(scene.done), scene.done.count("over")] == ["begun", 3, 1]


def test_an_error_is_printed_and_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    scene = Scene()

    def fail() -> None:
        raise ValueError("as it must")

    scene.workers.start(fail)
    turns()
    scene.workers.start(scene.quick)
    turns()
    assert len(scene.done) == 1
    assert "as it must" in capsys.readouterr().err


def test_who_wakes_an_idle_greenlet_by_mistake_changes_nothing() -> None:
    scene = Scene()
    scene.workers.start(scene.quick)
    turns()
    (idle,) = scene.workers._idle
    get_hub().loop.run_callback(idle.switch)
    turns()
    scene.workers.start(scene.quick)
    turns()
    assert scene.done == [idle, idle]


def test_nothing_is_left_of_them_without_the_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        scene = Scene()
        scene.workers.start(scene.quick)
        turns()
        watched = weakref.ref(scene.done.pop())
        del scene
        assert watched() is None
    finally:
        gc.enable()
