"""One call whose shell runs: its output, its call timer, its approval prompts, and its end.

The child is the call's exec supervisor, which stands for the shell and for everything the shell starts:
SIGTERM makes it end all of that, and its exit means that nothing is left.  When others outlive the shell, it
says so: the time limit counts no longer, and it is told once the outputs are over.  SIGKILL follows a SIGTERM
that takes too long; what the supervisor had then ends with it, or the zygote ends it.
"""

from __future__ import annotations

import enum
import logging
import signal
import time

from gevent import socket
from gevent.event import Event

from execserver.mcp.call_timer import CallTimer
from execserver.mcp.elicitation import AskAboutProgram
from execserver.mcp.output_capture import OutputCapture
from execserver.mcp.questions import Questions
from execserver.services.launch.child import Child
from execserver.services.running.output_pump import OutputPump

_log = logging.getLogger(__name__)

# For a process that holds an output and that nobody could end, both streams together.  Others have had
# `LINGER_S` from the shell's end until the supervisor ended them.
OUTPUT_GRACE_S = 2.0
_DRAINED_BYTES = 1024 * 1024  # read at the end, without waiting; none of our pipes holds more
_ENDING = ((signal.SIGTERM, 3.0), (signal.SIGKILL, 3.0))  # seconds for each; far more than either needs


class Outcome(enum.Enum):
    """Why a call is over."""

    EXITED = enum.auto()
    TIMED_OUT = enum.auto()
    CANCELLED = enum.auto()


class RunningCall:
    """A started shell.  Owns the child's descriptors and `sock`; `close` closes them."""

    def __init__(self, child: Child, sock: socket.socket, timer: CallTimer, ask: AskAboutProgram) -> None:
        self.capture = OutputCapture()
        self._child = child
        self._timer = timer
        self._news = Event()
        self._outputs_ended = Event()
        self._pumps = [
            OutputPump(stream, fd, self._take, _Unhindered(), self._output_ended, lambda: child.exited)
            for stream, fd in child.outputs
        ]
        self._lingers = False  # the shell has ended, others have not
        self._questions = Questions(sock, ask, self.pause, self.resume, self._shell_ended)
        for pump in self._pumps:
            pump.start()
        self._questions.start()
        child.on_exit(lambda _: self._news.set())

    def wait(self, cancelled: Event) -> Outcome:
        """Wait for the end of the shell, the time limit or `cancelled`; return which one came.

        Afterwards everything has ended, and its output is in `capture`.
        """
        cancelled.rawlink(self._wake)
        try:
            outcome = self._wait_for_outcome(cancelled)
        finally:
            cancelled.unlink(self._wake)
        if outcome is not Outcome.EXITED:
            self._end()
        for pump in self._pumps:
            pump.drain(_DRAINED_BYTES)
        if outcome is Outcome.EXITED:  # else nobody is left who could write
            self._outputs_ended.wait(OUTPUT_GRACE_S)
        return outcome

    def close(self) -> None:
        """End what still runs, and close everything."""
        try:
            self._questions.close()
            self._end()
        finally:
            pumps, self._pumps = self._pumps, []  # they refer to this call: a reference cycle
            for pump in pumps:
                pump.stop()

    def _wait_for_outcome(self, cancelled: Event) -> Outcome:
        while not self._child.exited:
            now = time.monotonic_ns()
            if cancelled.is_set():
                return Outcome.CANCELLED
            if self._timer.expired(now) and not self._lingers:
                return Outcome.TIMED_OUT
            # A paused timer cannot expire; `resume` wakes this loop.
            is_free = self._timer.paused or self._lingers
            left_ns = None if is_free else self._timer.remaining_ns(now)
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

    def _take(self, stream: str, data: bytes, _: bool) -> None:
        self.capture.add(stream, data)

    def pause(self) -> None:
        """Stop the call timer while the user is asked something."""
        self._timer.pause(time.monotonic_ns())
        self._news.set()

    def resume(self) -> None:
        """Let it go on."""
        self._timer.resume(time.monotonic_ns())
        self._news.set()

    def _wake(self, _: object) -> None:
        self._news.set()

    def _output_ended(self) -> None:
        if all(pump.ended for pump in self._pumps):
            self._outputs_ended.set()
            if self._lingers:
                self._questions.hang_up()

    def _shell_ended(self) -> None:
        self._lingers = True
        self._news.set()
        if self._outputs_ended.is_set():
            self._questions.hang_up()


class _Unhindered:
    """Lets a pump read on: the capture drops what is too much."""

    has_room = may_go_on = True

    def wait_for_room(self) -> None:
        """Return at once."""
