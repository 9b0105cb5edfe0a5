"""One call whose shell runs: its output, its clock, its questions, and how all of it ends.

The child is the call's supervisor, which stands for the shell and for everything that comes of it: SIGTERM
makes it end all of that, and its exit tells that nothing is left.  SIGKILL follows when it takes too long;
what it had then ends with it, or is ended by the zygote.
"""

from __future__ import annotations

import enum
import logging
import signal
import time

from gevent import socket
from gevent.event import Event

from execserver.mcp.capture import Capture
from execserver.mcp.elicitation import Ask
from execserver.mcp.questions import Questions
from execserver.mcp.stopwatch import Stopwatch
from execserver.services.child import Child
from execserver.services.pump import Pump

_log = logging.getLogger(__name__)

OUTPUT_GRACE_S = 2.0  # for others that hold an output after the shell's end, both streams together
_DRAINED_BYTES = 1024 * 1024  # read without waiting at the end; no pipe of ours holds more
_ENDING = ((signal.SIGTERM, 3.0), (signal.SIGKILL, 3.0))  # seconds for each; far more than either takes


class Outcome(enum.Enum):
    """Why a call is over."""

    EXITED = enum.auto()
    TIMED_OUT = enum.auto()
    CANCELLED = enum.auto()


class RunningCall:
    """A started shell.  Owns the child's descriptors and `sock`; `close` gives them back."""

    def __init__(self, child: Child, sock: socket.socket, stopwatch: Stopwatch, ask: Ask) -> None:
        self.capture = Capture()
        self._child = child
        self._stopwatch = stopwatch
        self._news = Event()
        self._outputs_ended = Event()
        self._pumps = [
            Pump(stream, fd, self.capture.add, _never_wait, self._output_ended, lambda: child.exited)
            for stream, fd in child.outputs
        ]
        self._questions = Questions(sock, ask, self._pause, self._resume)
        for pump in self._pumps:
            pump.start()
        self._questions.start()
        child.on_exit(lambda _: self._news.set())

    def wait(self, cancelled: Event) -> Outcome:
        """Wait until the shell has ended, or must be; then everything has ended and its output is here."""
        cancelled.rawlink(self._wake)
        try:
            outcome = self._wait_for_outcome(cancelled)
        finally:
            cancelled.unlink(self._wake)
        if outcome is not Outcome.EXITED:
            self._end()
        for pump in self._pumps:
            pump.drain(_DRAINED_BYTES)
        if outcome is Outcome.EXITED:
            self._outputs_ended.wait(OUTPUT_GRACE_S)
        return outcome

    def close(self) -> None:
        """End what still runs, and close everything."""
        try:
            self._questions.close()
            self._end()
        finally:
            pumps, self._pumps = self._pumps, []  # which hold this call
            for pump in pumps:
                pump.stop()

    def _wait_for_outcome(self, cancelled: Event) -> Outcome:
        while not self._child.exited:
            now = time.monotonic_ns()
            if cancelled.is_set():
                return Outcome.CANCELLED
            if self._stopwatch.expired(now):
                return Outcome.TIMED_OUT
            left_ns = None if self._stopwatch.paused else self._stopwatch.remaining_ns(now)
            self._news.clear()
            self._news.wait(None if left_ns is None else left_ns / 1e9)
        return Outcome.EXITED

    def _end(self) -> None:
        for signum, patience_s in _ENDING:
            deadline = time.monotonic() + patience_s
            if not self._child.exited:
                self._signal(signum)
            while not self._child.exited and (left := deadline - time.monotonic()) > 0:
                self._news.clear()
                self._news.wait(left)
        if not self._child.exited:
            _log.error("the shell of a call cannot be ended: process %d", self._child.pid)

    def _signal(self, signum: int) -> None:
        try:
            self._child.signal(signum)
        except OSError as error:
            _log.warning("process %d cannot be signalled: %s", self._child.pid, error)

    def _pause(self) -> None:
        self._stopwatch.pause(time.monotonic_ns())
        self._news.set()

    def _resume(self) -> None:
        self._stopwatch.resume(time.monotonic_ns())
        self._news.set()

    def _wake(self, _: object) -> None:
        self._news.set()

    def _output_ended(self) -> None:
        if all(pump.ended for pump in self._pumps):
            self._outputs_ended.set()


def _never_wait() -> None:
    """Read on: what is too much is dropped."""
