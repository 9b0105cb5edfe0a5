"""Greenlets that stay for the next piece of work: to make one takes as long as a short piece does.

A few idle ones are kept.  Beyond that, and after work that was killed, a greenlet ends with its work.
"""

from __future__ import annotations

from collections.abc import Callable

from gevent import GreenletExit, getcurrent
from gevent.hub import get_hub
from greenlet import greenlet

MAX_IDLE = 16


class Workers:
    """Does pieces of work beside each other."""

    def __init__(self) -> None:
        self._idle: list[greenlet] = []

    def start(self, do: Callable[[], None]) -> Work:
        """Begin a piece of work: at once in a callback of the event loop, else in the loop's next one.

        What it raises is printed, as what any greenlet raises.
        """
        work = Work(do, self._idle)
        hub = get_hub()
        if getcurrent() is hub:
            work.begin()
        else:
            hub.loop.run_callback(work.begin)
        return work


class Work:
    """A piece of work from its start to its end."""

    __slots__ = ("_do", "_idle", "_worker")

    def __init__(self, do: Callable[[], None], idle: list[greenlet]) -> None:
        self._do = do
        self._idle = idle
        self._worker: greenlet | None = None

    def begin(self) -> None:
        """Do it until it waits for something; called by the event loop."""
        self._worker = self._idle.pop() if self._idle else _new()
        self._worker.switch(self)

    def kill(self) -> None:
        """Have it end soon by a GreenletExit; does nothing once it has ended."""
        get_hub().loop.run_callback(self._kill)

    def done(self) -> bool:
        """Do it; return whether the greenlet stays for the next piece."""
        do = self._do
        del self._do  # it may lead back to here: a reference cycle
        try:
            do()
        except GreenletExit:
            return False
        finally:
            self._worker = None
        if len(self._idle) >= MAX_IDLE:
            return False
        self._idle.append(getcurrent())
        return True

    def _kill(self) -> None:
        if self._worker is not None:
            self._worker.throw(GreenletExit)


def _new() -> greenlet:
    worker = greenlet(_run, get_hub())
    worker.switch()  # without work: what it begins with, a greenlet holds to its end
    return worker


def _run() -> None:
    """Do one piece of work after the other.  Idle, it holds nothing that leads to whoever keeps it."""
    while True:
        work = get_hub().switch()
        if isinstance(work, Work) and not work.done():
            return
        del work
