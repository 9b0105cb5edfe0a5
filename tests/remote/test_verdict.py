"""The registry's verdict: told once, whether the loop finds the answer or a greenlet waits for it."""

from __future__ import annotations

from collections.abc import Callable

import gevent
import gevent.event
import pytest

from execserver.remote.registry import AuthenticationRejected, Rejected
from execserver.remote.verdict import Verdict
from tests.support.greenlets import turns
from tests.support.waiting import wait_until

LONG_S = 60.0


class Question:
    """One question: `is_sent` at once or not; the answer comes in one piece or in two."""

    def __init__(self, *, is_sent: bool, pieces: int = 1, refusal: Rejected | None = None) -> None:
        self._is_sent = is_sent
        self._pieces = pieces
        self._refusal = refusal
        self._act: Callable[[], None] | None = None
        self._all_there = gevent.event.Event()
        self.waited_in: list[object] = []

    def when_answered(self, act: Callable[[], None]) -> bool:
        """Keep what to call."""
        self._act = act
        return self._is_sent

    def is_answered(self) -> bool:
        """Return whether all pieces have come."""
        return self._all_there.is_set()

    def wait(self) -> None:
        """Wait for all pieces."""
        self.waited_in.append(gevent.getcurrent())
        self._all_there.wait()
        if self._refusal is not None:
            raise self._refusal

    def arrive(self) -> None:
        """Have the next piece arrive, in the event loop."""
        self._pieces -= 1
        if not self._pieces:
            self._all_there.set()
        act, self._act = self._act, None
        if self._is_sent and act is not None:
            gevent.get_hub().loop.run_callback(act)
        turns()

    def close(self) -> None:
        """Do nothing."""


REFUSALS = [None, Rejected("no"), AuthenticationRejected("401")]


@pytest.mark.parametrize("refusal", REFUSALS)
def test_an_answer_that_is_all_there_is_told_by_the_loop_itself(refusal: Rejected | None) -> None:
    told: list[Rejected | None] = []
    question = Question(is_sent=True, refusal=refusal)
    Verdict(question, told.append, LONG_S)
    turns()
    assert told == []
    question.arrive()
    assert told == [refusal]
    assert question.waited_in == [gevent.get_hub()]


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize(("is_sent", "pieces"), [(True, 2), (False, 1)])
def test_everything_else_is_waited_for_in_a_greenlet(
    refusal: Rejected | None, *, is_sent: bool, pieces: int
) -> None:
    told: list[Rejected | None] = []
    question = Question(is_sent=is_sent, pieces=pieces, refusal=refusal)
    Verdict(question, told.append, LONG_S)
    for _ in range(pieces):
        turns()
        assert told == []
        question.arrive()
    assert told == [refusal]
    (waited_in,) = question.waited_in
    assert isinstance(waited_in, gevent.Greenlet)


@pytest.mark.parametrize(("is_sent", "pieces"), [(True, 1), (True, 2), (False, 1)])
def test_without_an_answer_in_time_the_harness_is_refused_once(*, is_sent: bool, pieces: int) -> None:
    told: list[Rejected | None] = []
    question = Question(is_sent=is_sent, pieces=pieces)
    Verdict(question, told.append, 0.02)
    if pieces == 2:
        question.arrive()
    wait_until(lambda: told, pause=gevent.sleep)
    question.arrive()
    assert [str(each) for each in told] == ["the registry did not answer in time"]


@pytest.mark.parametrize(("is_sent", "pieces"), [(True, 1), (True, 2), (False, 1)])
def test_nothing_is_told_after_it_was_cancelled(*, is_sent: bool, pieces: int) -> None:
    told: list[Rejected | None] = []
    question = Question(is_sent=is_sent, pieces=pieces)
    verdict = Verdict(question, told.append, 0.02)
    if pieces == 2:
        question.arrive()
    verdict.cancel()
    question.arrive()
    later: list[Rejected | None] = []
    Verdict(Question(is_sent=True), later.append, 0.02)
    wait_until(lambda: later, pause=gevent.sleep)  # past the limit of the other one, too
    assert told == []
