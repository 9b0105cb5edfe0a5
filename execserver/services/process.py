"""One process of a session: its outputs, its input, its exit, and the notifications about them.

The order of events is the one of `core.process_state`.  Notifications go to the client that is attached at
the moment; while none is attached output is only retained and the child runs freely.
"""

from __future__ import annotations

import fcntl
import logging
import struct
import termios
import time
from collections.abc import Callable
from typing import Protocol

import gevent
from gevent.event import Event

from execserver.core import denial
from execserver.core.output_log import Page
from execserver.core.process_state import ProcessState
from execserver.services.attachment import Attachment
from execserver.services.pump import Pump
from execserver.services.spawner import Child
from execserver.services.stdin_queue import StdinQueue

_log = logging.getLogger(__name__)

_LAST_READ_BYTES = 1024 * 1024  # read without waiting at the exit; no pipe of ours holds more


class Templates(Protocol):
    """How the notifications of one process are worded; an empty one is not sent."""

    def output(self, stream: str, seq: int, data: bytes) -> tuple[bytes, ...]:
        """Return the notification of one chunk, in parts."""

    def exited(
        self, seq: int, exit_code: int, sandbox_denied: bool = False, sandbox_refusal: str = ""
    ) -> bytes:
        """Return the notification of the exit."""

    def closed(self, seq: int) -> bytes:
        """Return the notification of the end."""


class Process:
    """A started process.  It owns the child's descriptors through its pumps and its input queue."""

    def __init__(
        self,
        templates: Templates,
        argv: list[str],
        state: ProcessState,
        child: Child,
        attachment: Attachment,
        on_closed: Callable[[], None],
    ) -> None:
        self.argv = argv
        self.state = state
        self.pid = child.pid
        self.started_at = time.time()
        self._child = child
        self._attachment = attachment
        self._on_closed = on_closed
        self._changed: Event | None = None
        self._outputs_ended: Event | None = None
        self._begun = False
        self._input_ended = False
        self._templates = templates
        self._terminal_fd = child.master_fd
        self.stdin = None if child.stdin_fd is None else StdinQueue(child.stdin_fd, owned=not state.tty)
        self._pumps = [
            Pump(stream, fd, self._output, attachment.wait_for_room, self._output_ended, self._is_over)
            for stream, fd in child.outputs
        ]

    def begin(self) -> None:
        """Start to read the outputs and to wait for the exit; called once the start was answered.

        Does nothing the second time: the session may have ended before the answer.
        """
        if self._begun:
            return
        self._begun = True
        for pump in self._pumps:
            pump.start()
        self._child.on_exit(self._exited)

    def signal(self, number: int) -> None:
        """Send a signal to the process group, if the process still runs; waits for the zygote.

        Raises OSError when the kernel refuses.
        """
        if not self.state.exited:
            self._child.signal(number)

    def terminate(self) -> bool:
        """Kill the process group; return whether the process was running (wire contract, section 8.5).

        Waits for the zygote.
        """
        if self.state.exited:
            return False
        self.state.terminated = True
        self._kill()
        if self.stdin is not None:  # not before: a reader of its input would end by itself, with success
            self.stdin.close()
        return True

    def end(self) -> None:
        """Kill whatever is left of the process group and stop listening to it; waits for the zygote."""
        if not self.state.closed:
            self.state.terminated = True
            self._kill()
        if self.state.exited:
            self._stop_pumps()

    def resize(self, rows: int, cols: int) -> bool:
        """Set the size of the terminal in cells; return False when there is none (any more)."""
        if self._terminal_fd is None:
            return False
        fcntl.ioctl(self._terminal_fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
        return True

    def close_stdin(self) -> None:
        """End the input after what is queued: close the pipe, or type the end-of-file character.

        Typing waits for room as a write does.
        """
        if self.stdin is None:
            return
        if self._terminal_fd is None:
            self._input_ended = True
            self.stdin.finish()
        else:
            self.stdin.put(termios.tcgetattr(self._terminal_fd)[6][termios.VEOF])

    @property
    def stdin_closed(self) -> bool:
        """True when the client ended the input."""
        return self._input_ended

    def page(self, after_seq: int, max_bytes: int | None) -> Page:
        """Return the retained chunks after a number."""
        return self.state.page(after_seq, max_bytes)

    def wait_for_news(self, after_seq: int, timeout_s: float) -> None:
        """Block until a waiting read has something to say, at most `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        while not self.state.answers_read(after_seq):
            left = deadline - time.monotonic()
            if left <= 0:
                return
            if self._changed is None:
                self._changed = Event()
            self._changed.wait(left)

    def _kill(self) -> None:
        try:
            self._child.kill_group()
        except OSError as error:  # it runs as another user by now; others must still be ended
            _log.warning("the group of process %d cannot be killed: %s", self.pid, error)

    def _output(self, stream: str, data: bytes) -> None:
        seq = self.state.record_output(stream, data)
        if self._attachment.sink is not None:  # else nobody would see the work of encoding it
            self._attachment.send(*self._templates.output(stream, seq, data))
        self._news()

    def _exited(self, exit_code: int) -> None:
        """Take the exit, after what the process wrote before it: that is in the pipes by now."""
        state = self.state
        if self._attachment.has_room or state.terminated:
            for pump in self._pumps:
                pump.drain(_LAST_READ_BYTES)
        ended = all(pump.ended for pump in self._pumps)
        if state.sandbox is None or not exit_code or state.terminated or ended:
            self._record_exit(exit_code)
        else:
            self._outputs_ended = Event()
            gevent.spawn(self._record_exit_later, exit_code, self._outputs_ended)

    def _record_exit_later(self, exit_code: int, outputs_ended: Event) -> None:
        """Let the last words of others that hold the outputs come first: they count for the verdict."""
        outputs_ended.wait(denial.WAIT_S)
        self._record_exit(exit_code)

    def _record_exit(self, exit_code: int) -> None:
        state = self.state
        seq = state.record_exit(exit_code, signalled=self._child.killed_by != 0)
        self._attachment.send(
            self._templates.exited(seq, state.exit_code or 0, state.sandbox_denied, state.sandbox_refusal)
        )
        self._news()
        if state.terminated:
            self._stop_pumps()
        self._close_if_over()

    def _is_over(self) -> bool:
        return self.state.exited

    def _output_ended(self) -> None:
        if self._terminal_fd is not None:
            self._terminal_fd = None  # the pump closes it now
            if self.stdin is not None:
                self.stdin.close()
        if self._outputs_ended is not None and all(pump.ended for pump in self._pumps):
            self._outputs_ended.set()
        self._close_if_over()

    def _stop_pumps(self) -> None:
        for pump in self._pumps:
            pump.stop()

    def _close_if_over(self) -> None:
        if self.state.closed or not self.state.exited or not all(pump.ended for pump in self._pumps):
            return
        if self.stdin is not None:
            self.stdin.close()
        self._pumps = []  # they call this process: without this only a collection would free both
        seq = self.state.record_closed()
        self._attachment.send(self._templates.closed(seq))
        self._news()
        self._on_closed()

    def _news(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()
