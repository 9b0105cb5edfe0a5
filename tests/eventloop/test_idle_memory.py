"""When an idle server collects garbage and gives memory back, and when it does not."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from execserver.eventloop import idle_memory
from execserver.eventloop.idle_memory import LOOK_S, IdleMemory


class Clock:
    """The time that has passed, and the processor time this process has used."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.used = 1.0

    def monotonic(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self.used


class Scene:
    """The one under test, its clock, and how often memory was given back."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.trims = 0
        self.kept = 3 << 20
        self.returned = 0
        self.memory = IdleMemory(self._trim, lambda: self.kept)
        self.memory.start()

    def _trim(self) -> None:
        self.trims += 1
        self.kept -= self.returned

    def pass_time(self, *used_s: float) -> int:
        """Let looks come, before each of which so much work was done; return how often they tidied."""
        before = self.trims
        for used in used_s:
            self.clock.now += LOOK_S
            self.clock.used += used
            self.memory.look()
        return self.trims - before


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """A server that has just started."""
    clock = Clock()
    monkeypatch.setattr(idle_memory, "time", clock)
    made = Scene(clock)
    yield made
    made.memory.close()


def test_a_busy_server_is_left_alone(scene: Scene) -> None:
    assert scene.pass_time(*[1.0] * 20) == 0


def test_after_the_work_memory_is_given_back_and_again_when_what_it_left_has_ended(scene: Scene) -> None:
    assert scene.pass_time(1.0, 0.001) == 1
    assert scene.pass_time(*[0.001] * 6) == 0  # 30 s, for which sessions and ended processes are kept
    assert scene.pass_time(0.001) == 1
    assert scene.pass_time(*[0.001] * 20) == 0
    assert scene.pass_time(1.0, 0.001) == 1


def test_little_work_is_not_worth_it(scene: Scene) -> None:
    assert scene.pass_time(0.15, *[0.001] * 10) == 0


def test_work_in_short_bursts_is_tidied_up_after_rarely(scene: Scene) -> None:
    assert scene.pass_time(*[1.0, 0.001] * 6) == 3  # in 60 s


def test_buffers_that_are_kept_are_returned_also_by_a_busy_server(scene: Scene) -> None:
    scene.returned = 80 << 20
    for _ in range(3):
        scene.kept += 80 << 20
        assert scene.pass_time(*[1.0] * 5) == 1


def test_buffers_after_little_work_are_returned_too(scene: Scene) -> None:
    scene.kept += 80 << 20
    assert scene.pass_time(0.0) == 1


def test_what_cannot_be_returned_is_not_tried_again(scene: Scene) -> None:
    scene.kept += 80 << 20  # between what is used: its pages are returned, and it counts as kept still
    assert scene.pass_time(*[1.0] * 5) == 1
    scene.kept -= 70 << 20  # used again
    assert scene.pass_time(*[1.0] * 5) == 0
    scene.kept += 70 << 20  # and freed again
    assert scene.pass_time(*[1.0] * 5) == 1


def test_little_that_is_kept_is_left(scene: Scene) -> None:
    scene.kept += 12 << 20
    assert scene.pass_time(*[1.0] * 5) == 0


def test_a_c_library_that_does_not_say_what_it_keeps_is_not_asked_to_return_it() -> None:
    trims: list[int] = []
    memory = IdleMemory(lambda: trims.append(1))
    memory.look()
    memory.close()
    assert trims == []


def test_garbage_is_collected_first(scene: Scene) -> None:
    class Thing:
        pass

    thing = Thing()
    thing.__dict__["itself"] = thing
    seen = weakref.ref(thing)
    gc.disable()
    try:
        del thing
        assert seen() is not None
        assert scene.pass_time(1.0, 0.001) == 1
        assert seen() is None
    finally:
        gc.enable()
