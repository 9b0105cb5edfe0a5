"""Brings the engine in line with the executors that are connected here, for as long as it takes."""

from __future__ import annotations

from collections.abc import Callable

from gevent import Greenlet, sleep, spawn
from gevent.event import Event

from execserver.relay.cluster.residents import Order, Residents
from execserver.relay.engine import steps
from execserver.relay.engine.client import Engine
from execserver.relay.errors import CannotServe

_BATCH = 128  # steps in one call of the engine
_PAUSE_S = 0.5  # after steps that all failed


class Telling:
    """One greenlet that does what is due."""

    def __init__(self, engine: Engine, residents: Residents, obey: Callable[[Order], None]) -> None:
        """`obey` carries out what an answer orders; it must not block."""
        self._engine = engine
        self._residents = residents
        self._obey = obey
        self._is_due = Event()
        self._done = Event()
        self._greenlet: Greenlet[[], None] | None = None

    def start(self) -> None:
        """Begin."""
        self._greenlet = spawn(self._run)

    def wake(self) -> None:
        """Have it look at what is due."""
        self._done.clear()
        self._is_due.set()

    def close(self, seconds: float) -> None:
        """Tell what is left, for some seconds at most, and end."""
        if self._residents.is_due:
            self._done.wait(seconds)
        if self._greenlet is not None:
            self._greenlet.kill(block=False)

    def _run(self) -> None:
        while True:
            self._is_due.wait()
            self._is_due.clear()
            while self._residents.is_due:
                if not self._tell_some():
                    sleep(_PAUSE_S)
            self._done.set()

    def _tell_some(self) -> bool:
        """Do some steps; return whether any was answered: one that never is must not hold up the others."""
        taken = self._residents.due(_BATCH)
        try:
            answers = steps.tell(self._engine, taken)
        except CannotServe:
            answers = [None] * len(taken)
        for step, answer in zip(taken, answers, strict=True):
            if answer is None:
                self._residents.failed(step)
                continue
            order = self._residents.answered(step, answer)
            if order is not None:
                self._obey(order)
        return any(answer is not None for answer in answers)
