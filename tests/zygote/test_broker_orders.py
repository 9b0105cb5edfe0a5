"""The exec broker under every order of events: what is accepted runs once, and everybody gets one answer.

Callers, questions and programs are played; whatever may come next, comes next in some run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from execserver.rules.policy import Policy
from execserver.zygote.supervision import exec_broker
from execserver.zygote.supervision.environment import OutsideEnvironment
from execserver.zygote.supervision.event_loop import EventLoop
from execserver.zygote.supervision.exec_broker import ExecBroker
from execserver.zygote.supervision.outside import Outside
from execserver.zygote.supervision.records import ACCEPT, CANCEL, DECLINE, FAILED
from execserver.zygote.supervision.trap.callers import (
    INSIDE,
    NOTHING,
    OUTSIDE,
    Caller,
    Execution,
    Means,
    Start,
)
from tests.zygote.supervised import allow, forbid, prompt

T = TypeVar("T")

AT_ONCE = 2
NO_PID = 1_000_000_000  # above what a kernel gives: nobody is signalled
FILES = (b"/allowed", b"/asked", b"/forbidden", b"/unknown")


WHICH = st.integers(0, 999)
ORDERS = ("traced", "interrupted", "held")  # a caller before its program starts; the last one afterwards


def one_of(those: Sequence[T], which: int) -> T:
    """Return one of several, by any number."""
    return those[which % len(those)]


class PlayedCaller(Caller):
    """A caller of which the test says when it gives its means, halts and dies."""

    def __init__(self, found: int) -> None:
        self.alive_fd, self._writer = os.pipe()
        self.found = found
        self.answers: list[str] = []
        self.then: object = None
        self.start: Start | None = None
        self.followed: Start | None = None  # while its end is heard of by tracing
        self.program = 0

    def look(self, file: bytes) -> int:
        return self.found

    def run(self) -> None:
        self._end("run")

    def deny(self, text: str) -> None:
        self._end("deny")

    def exit(self, code: int) -> None:
        self._end("exit")

    def fail(self, number: int) -> None:
        self._end("fail")

    def collect(self, then: object) -> None:
        assert self.is_open
        self.then = then

    def halt(self, start: Start) -> None:
        assert self.is_open
        self.start = start

    def replaced(self, program: int) -> None:
        assert self.is_open
        self.program = program

    def gone(self) -> int:
        self._end("gone")
        return 0

    @property
    def is_open(self) -> bool:
        return not self.answers

    def give(self, has_folder: bool) -> None:
        """Give the means that were asked for."""
        then, self.then = self.then, None
        then(Means([], {}, os.dup(self.alive_fd)) if has_folder else None)  # type: ignore[operator]

    def go_on(self) -> None:
        """Be halted."""
        start, self.start = self.start, None
        assert start is not None
        start.ready()

    def die(self) -> None:
        """Be gone."""
        if self.followed is not None:
            self.followed.lost(9)
        else:
            os.write(self._writer, b"x")

    def _end(self, how: str) -> None:
        assert self.is_open, f"{how} after {self.answers}"
        self.answers.append(how)
        self.then = self.start = self.followed = None
        os.close(self.alive_fd)
        os.close(self._writer)


class PlayedAsking:
    """Keeps what is asked."""

    def __init__(self) -> None:
        self.open: dict[int, object] = {}
        self._last = 0

    def ask(self, execution: Execution, answered: object) -> int:
        self._last += 1
        self.open[self._last] = answered
        return self._last

    def withdraw(self, number: int) -> None:
        self.open.pop(number, None)


class PlayedOutside(Outside):
    """Starts nothing; some starts fail."""

    def __init__(self) -> None:
        self.pids: list[int] = []
        self.fails = False

    def start(self, file: bytes, argv: object, means: Means) -> int:
        if self.fails:
            raise OSError(2, "No such file or directory")
        self.pids.append(NO_PID + len(self.pids) + 1)
        return self.pids[-1]


class Orders(RuleBasedStateMachine):
    """Events in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.loop, self.asking, self.outside = EventLoop(), PlayedAsking(), PlayedOutside()
        policy = Policy((allow("allowed"), prompt("asked"), forbid("forbidden")))
        self.broker = ExecBroker(
            *(policy, False, OutsideEnvironment(()), self.outside),
            self.asking,  # type: ignore[arg-type]
            self.loop,
        )
        self.callers: list[PlayedCaller] = []
        self.ended: set[int] = set()

    def those(self, condition: object) -> list[PlayedCaller]:
        return [caller for caller in self.callers if caller.is_open and condition(caller)]  # type: ignore[operator]

    @rule(file=st.sampled_from(FILES), found=st.sampled_from([OUTSIDE, OUTSIDE, INSIDE, NOTHING]))
    def arrives(self, file: bytes, found: int) -> None:
        caller = PlayedCaller(found)
        self.callers.append(caller)
        self.broker.arrive(caller, Execution(file, [file], b"/"))
        if file == b"/allowed" and found == OUTSIDE:
            assert caller.is_open

    @precondition(lambda self: self.asking.open)
    @rule(which=WHICH, action=st.sampled_from([ACCEPT, ACCEPT, DECLINE, CANCEL, FAILED]))
    def is_answered(self, which: int, action: int) -> None:
        number = one_of(sorted(self.asking.open), which)
        self.asking.open.pop(number)(action)  # type: ignore[operator]

    @precondition(lambda self: self.those(lambda caller: caller.then))
    @rule(which=WHICH, has_folder=st.sampled_from([True, True, False]))
    def gives_its_means(self, which: int, has_folder: bool) -> None:
        one_of(self.those(lambda caller: caller.then), which).give(has_folder)

    @precondition(lambda self: self.those(lambda caller: caller.start))
    @rule(which=WHICH, fails=st.sampled_from([False, False, True]), order=st.sampled_from(ORDERS))
    def is_halted(self, which: int, fails: bool, order: str) -> None:
        caller = one_of(self.those(lambda caller: caller.start), which)
        start = caller.start
        assert start is not None
        if order != "held":
            start.traced()
        if order == "interrupted":
            start.interrupted()
        elif order == "traced":
            caller.followed = start
        self.outside.fails = fails
        before = len(self.outside.pids)
        caller.go_on()
        if order == "held" and caller.is_open:
            start.traced()  # its program runs by now
            caller.followed = start
        assert len(self.outside.pids) == before + (not fails)
        assert caller.is_open is not fails

    @precondition(lambda self: self.those(lambda caller: caller.start))
    @rule(which=WHICH)
    def is_lost_while_it_halts(self, which: int) -> None:
        caller = one_of(self.those(lambda caller: caller.start), which)
        start = caller.start
        assert start is not None
        start.traced()
        start.lost(9)
        assert caller.answers == ["gone"]

    @precondition(lambda self: set(self.outside.pids) - self.ended)
    @rule(which=WHICH, status=st.sampled_from([0, 7 << 8, 15]))
    def ends(self, which: int, status: int) -> None:
        pid = one_of(sorted(set(self.outside.pids) - self.ended), which)
        self.ended.add(pid)
        assert self.broker.ended(pid, status)

    @precondition(lambda self: self.those(lambda caller: True))
    @rule(which=WHICH)
    def dies(self, which: int) -> None:
        caller = one_of(self.those(lambda caller: True), which)
        caller.die()
        self.settle()
        assert caller.answers == ["gone"]

    @precondition(lambda self: self.those(lambda caller: True))
    @rule(which=WHICH)
    def wants_something_else(self, which: int) -> None:
        caller = one_of(self.those(lambda caller: True), which)
        self.broker.abandon(caller)
        assert caller.answers == ["gone"]

    def settle(self) -> None:
        """Do what is due by now."""
        self.loop.after(0, lambda: None)
        self.loop.turn()

    @invariant()
    def no_more_run_than_may(self) -> None:
        assert len(set(self.outside.pids) - self.ended) <= AT_ONCE

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        """Whoever has no answer is asked about, has its turn, waits behind a full house, or is replaced."""
        self.settle()
        asked = len(self.asking.open)
        running = len({caller.program for caller in self.callers if caller.is_open and caller.program})
        on_the_way = len(self.those(lambda caller: caller.then or caller.start))
        waiting = len(self.those(lambda caller: True)) - asked - running - on_the_way
        assert waiting >= 0
        busy = len(set(self.outside.pids) - self.ended) + on_the_way
        assert not waiting or busy >= AT_ONCE

    def teardown(self) -> None:
        """Let everything come to its end: all that was accepted and lived has run."""
        while self.asking.open:
            self.asking.open.pop(min(self.asking.open))(ACCEPT)  # type: ignore[operator]
        self.outside.fails = False
        while open_ones := self.those(lambda caller: True):
            # What ends may belong to a caller that is gone, and be what the others wait for.
            running = set(self.outside.pids) - self.ended
            moved = bool(running)
            for caller in open_ones:
                moved = moved or bool(caller.then or caller.start)
                if caller.then:
                    caller.give(True)
                if caller.start:
                    caller.go_on()
            for pid in running:
                self.ended.add(pid)
                self.broker.ended(pid, 0)
            assert moved, "somebody waits for ever"
        assert not self.broker.is_full
        assert all(len(caller.answers) == 1 for caller in self.callers)


class TestOrders(Orders.TestCase):  # type: ignore[misc, valid-type]
    """Runs the machine."""

    settings = settings(deadline=None, stateful_step_count=30)

    @pytest.fixture(autouse=True)
    def few_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make the limit one that is met."""
        monkeypatch.setattr(exec_broker, "STARTED_AT_ONCE", AT_ONCE)
