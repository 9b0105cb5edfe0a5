"""The registry's verdict about one harness, told in the event loop as it comes.

An answer that is all there at once, as nearly every one is, needs no greenlet: making one, and waiting and
being woken in it, takes longer than reading the answer.  Everything else is waited for in one.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Protocol

import gevent
from gevent.hub import get_hub

from execserver.remote.registry import Rejected


class Question(Protocol):
    """What the registry is asked about one harness; `close` follows in any case."""

    def when_answered(self, act: Callable[[], None]) -> bool:
        """Have the loop call `act` once something of the answer is there; False if it was not sent yet."""

    def is_answered(self) -> bool:
        """Return whether `wait` would not have to wait; does not wait itself."""

    def wait(self) -> None:
        """Return if the registry lets the harness in; raise Rejected if not."""

    def close(self) -> None:
        """End it, after `wait` or instead."""


class Verdict:
    """Calls `tell` once, with the reason of a refusal or None, within `limit_s`; after `cancel` never."""

    __slots__ = ("_greenlet", "_is_over", "_question", "_tell", "_timer", "_until")

    def __init__(self, question: Question, tell: Callable[[Rejected | None], None], limit_s: float) -> None:
        self._question = question
        self._tell = tell
        self._until = monotonic() + limit_s
        self._is_over = False
        self._greenlet: gevent.Greenlet[[], None] | None = None
        self._timer = get_hub().loop.timer(limit_s)
        if question.when_answered(self._look):
            self._timer.start(self._late)
        else:
            self._wait_aside()

    def cancel(self) -> None:
        """Tell nothing any more; whoever calls this closes the question."""
        self._is_over = True
        self._timer.close()
        waiting, self._greenlet = self._greenlet, None  # its traceback will hold this
        if waiting is not None:
            waiting.kill(block=False)

    def _look(self) -> None:
        self._timer.stop()
        if self._question.is_answered():
            self._end(_judged(self._question))
        else:
            self._wait_aside()

    def _late(self) -> None:
        self._end(_late())

    def _wait_aside(self) -> None:
        self._greenlet = gevent.Greenlet(self._wait)
        self._greenlet.start()

    def _wait(self) -> None:
        # It covers the headers, too: refreshing a token for them has a longer limit of its own.
        with gevent.Timeout(max(0.0, self._until - monotonic()), _late()):
            rejected = _judged(self._question)
        self._end(rejected)

    def _end(self, rejected: Rejected | None) -> None:
        if not self._is_over:
            self._is_over = True
            self._timer.close()
            self._tell(rejected)


def _judged(question: Question) -> Rejected | None:
    """Wait for the registry's answer; return why it refuses the harness, None if it lets it in."""
    try:
        question.wait()
    except Rejected as rejected:
        return rejected.with_traceback(None)
    return None


def _late() -> Rejected:
    return Rejected("the registry did not answer in time")
