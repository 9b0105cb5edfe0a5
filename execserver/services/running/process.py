"""One process of a session: its outputs, its input, its exit, and the notifications about them.

`core.process_state` defines the order of events.  Notifications go to the client that is attached at the
moment.  While no client is attached, output is only retained, and nothing holds the command back.
"""

from __future__ import annotations

import fcntl
import logging
import struct
import termios
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import gevent
from gevent.event import Event

from execserver.core import denial
from execserver.core.output_log import Page
from execserver.core.process_end import Evidence, why
from execserver.core.process_state import ProcessState
from execserver.protocol.resource_limits import ProcessEnd, ResourceUsage
from execserver.protocol.templates import end_members
from execserver.services.clients.attachment import Attachment
from execserver.services.launch.child import usage_of
from execserver.services.launch.spawner import Child
from execserver.services.running.output_pump import OutputPump
from execserver.services.running.process_roles import Closing, Follower, Templates
from execserver.services.running.spool import Spool, SpoolPace
from execserver.services.running.stdin_queue import StdinQueue

if TYPE_CHECKING:
    from execserver.audit.recording import Recording
    from execserver.handover.carrier import Incoming
    from execserver.handover.records import PackedInput
    from execserver.services.resources.account import Account
    from execserver.services.running.process_recorder import ProcessRecorder

    Ending = tuple[ProcessEnd | None, ResourceUsage]

_log = logging.getLogger(__name__)

_LOOK_AGAIN_S = 60.0
_LAST_READ_BYTES = 1024 * 1024  # read at the exit, without waiting; none of our pipes holds more


class Process:
    """A started process.  Its output pumps and its input queue own the child's descriptors."""

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
        self.process_id = ""
        self.name: str | None = None
        self.followers: list[Follower] = []
        self.spool: Spool | None = None
        self.on_exit: Callable[[Process], None] | None = None
        self.network: Closing | None = None  # its proxy, which ends with it
        self.account: Account | None = None  # of its limits, if it has any
        self._sent: frozenset[int] = frozenset()  # signals of clients
        self._recorder: ProcessRecorder | None = None
        self._end: Ending | None = None
        self.owner = self.writer = attachment  # the writer is the session that may write
        self.state = state
        self.pid = child.pid
        self.started_at = time.time()
        self._child = child
        self._attachment = attachment
        self._on_closed = on_closed
        self._changed: Event | None = None  # made by a read that waits, dropped at the next change
        self._outputs_ended: Event | None = None
        self._begun = False
        self.stdin_closed = False  # the client has closed the input pipe
        self._templates = templates
        self._terminal_fd = child.master_fd
        # A terminal is one descriptor for both directions, and its pump closes it.
        self.stdin = None if child.stdin_fd is None else self._new_input(child.stdin_fd)
        self._pumps = [self._new_pump(stream, fd) for stream, fd in child.outputs]

    def _new_input(self, fd: int) -> StdinQueue:
        return StdinQueue(fd, owned=not self.state.tty)

    def _new_pump(self, stream: str, fd: int) -> OutputPump:
        return OutputPump(stream, fd, self._output, self._attachment, self._output_ended, self._is_over)

    def unpack_input(self, packed: PackedInput, incoming: Incoming) -> None:
        """Take over the input that was packed."""
        fd = packed.fd
        if fd >= 0 and not self.state.tty:
            fd = incoming.take(fd)
        self.stdin = self._new_input(max(fd, 0))  # what is gone never uses the number
        self.stdin.restore(packed)

    def begin(self) -> None:
        """Start reading the outputs and waiting for the exit; called once the start has been answered.

        A second call does nothing: a session that ended before the answer has made the first one.
        """
        if self._begun:
            return
        self._begun = True
        # Not in the constructor: the answer to `process/start` must be queued before any notification.
        for pump in self._pumps:
            pump.start()
        if not self.state.exited:  # else another server has recorded the exit
            self._child.on_exit(self._exited)  # called at once if the process has exited already

    def signal(self, number: int) -> None:
        """Send a signal to the process group if the process still runs; wait for the zygote's answer.

        Raises OSError if the kernel refuses.
        """
        if not self.state.exited:
            self._sent |= {number}  # before: the end may be known before the answer
            self._child.signal(number)

    def terminate(self) -> bool:
        """Kill the process group; return whether the process was running (wire contract, section 8.5).

        Waits for the zygote's answer.
        """
        # The reference server kills nothing after the exit, even if a grandchild holds an output open.
        if self.state.exited:
            return False
        self.state.terminated = True
        self._kill()
        # Only after the kill: a command that reads its input would see the end and exit by itself, with 0.
        if self.stdin is not None:
            self.stdin.close()
        return True

    def end(self) -> None:
        """Kill what is left of the process group and stop reading its output; wait for the zygote's answer.

        Unlike `terminate`, this also kills members of the group that outlived the process.
        """
        if not self.state.closed:
            self.state.terminated = True
            self._kill()
        # If it has not exited yet, `_record_exit` stops the pumps.
        if self.state.exited:
            self._stop_pumps()

    @property
    def ending(self) -> Ending | None:
        """Why a process that has exited did so, and what it used; None while it runs."""
        if self._end is None and self.state.exited:
            child = self._child
            known = Evidence(
                child.killed_by, not child.is_lost, terminated=self.state.terminated, sent=self._sent
            )
            self._end = why(known), usage_of(child)
        return self._end

    def resize(self, rows: int, cols: int) -> bool:
        """Set the size of the terminal in cells; return False if there is no terminal, or none any more."""
        if self._terminal_fd is None:
            return False
        fcntl.ioctl(self._terminal_fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
        if self._recorder is not None:
            self._recorder.resized(rows, cols)
        return True

    def record_to(self, recording: Recording, *, with_input: bool) -> None:
        """Record all output, and input if asked, until the process is closed; called before `begin`."""
        from execserver.services.running.process_recorder import ProcessRecorder  # late: few are recorded

        if self.state.closed:
            recording.close()  # its session has ended meanwhile
            return
        self._recorder = ProcessRecorder(recording, self._terminal_fd)
        if with_input and self.stdin is not None:
            self.stdin.recorder = self._recorder.before_input

    @property
    def size(self) -> tuple[int, int] | None:
        """Rows and columns of the terminal; None without one, or when it is gone."""
        if self._terminal_fd is None:
            return None
        room = fcntl.ioctl(self._terminal_fd, termios.TIOCGWINSZ, bytes(8))
        rows, cols, *_ = struct.unpack("HHHH", room)
        return rows, cols

    def spool_to(self, spool: Spool) -> None:
        """Read on only when a spool has room, too; called before `begin`."""
        self.spool = spool
        pace = SpoolPace(self._attachment, spool)
        for pump in self._pumps:
            pump.pace = pace

    def forgotten(self) -> None:
        """Drop what is spooled, and tell all that follow that their ids are free."""
        if self.spool is not None:
            self.state.log.on_drop = None
            self.spool.close()
        followers, self.followers = self.followers, []
        for follower in followers:
            follower.lose()

    def close_stdin(self) -> None:
        """End the input behind what is queued: close the pipe, or type the terminal's end-of-file character.

        Typing it waits for room, as a write does.
        """
        if self.stdin is None:
            return
        if self._terminal_fd is None:
            self.stdin_closed = True
            self.stdin.finish()
        else:
            # A terminal stays usable after its end-of-file character, so `stdin_closed` stays False.
            self.stdin.put(termios.tcgetattr(self._terminal_fd)[6][termios.VEOF])

    def page(self, after_seq: int, max_bytes: int | None) -> Page:
        """Return the retained chunks with a higher `seq` than `after_seq`."""
        return self.state.page(after_seq, max_bytes)

    def wait_for_news(self, after_seq: int, timeout_s: float) -> None:
        """Block until `process/read` has something new to answer, for at most `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        while not self.state.answers_read(after_seq):
            left = deadline - time.monotonic()
            if left <= 0:
                return
            if self._changed is None:
                self._changed = Event()
            self._changed.wait(left)

    def wait_beyond(self, seq: int) -> None:
        """Block until there is an event after this number, or a minute is over."""
        if seq >= self.state.log.next_seq - 1:
            if self._changed is None:
                self._changed = Event()
            self._changed.wait(_LOOK_AGAIN_S)

    @property
    def child(self) -> Child:
        """The started program."""
        return self._child

    @property
    def child_key(self) -> tuple[int, int]:
        """Its zygote and its number there."""
        return self._child.zygote, self._child.child_id

    def _kill(self) -> None:
        if self.account is not None and self.account.kill():
            return
        try:
            self._child.kill_group()
        except OSError as error:
            # It may run as another user by now (EPERM).  `ProcessTable.end` must still reach the others.
            _log.warning("the group of process %d cannot be killed: %s", self.pid, error)

    def _output(self, stream: str, data: bytes, at_once: bool) -> None:
        if self._recorder is not None:
            self._recorder.output(data)
        sink = self._attachment.sink  # a detached session saves the work of encoding
        parts = () if sink is None else self._templates.output(stream, self.state.log.next_seq, data)
        # Retained behind that: nothing can come in between, and the client has a line some us earlier.
        is_sent = at_once and sink is not None and len(parts) == 1 and sink.try_send(parts[0])
        self.state.record_output(stream, data, time.time_ns() // 1_000_000)
        if sink is not None and parts and not is_sent:
            if at_once:
                sink.hold()
                sink.send_parts(*parts)
                sink.release()
            else:
                sink.send_parts(*parts)
        if self._changed is not None:
            self._news()

    def _exited(self, exit_code: int) -> None:
        """Record the exit behind what the process wrote before it, which is in the pipes by now."""
        state = self.state
        # Without room at the client the drain would queue up to a MiB per output in the outbox.  The output
        # then stays in the pipes and follows the exit, with higher numbers; the contract allows that.
        if self._attachment.has_room or state.terminated:
            for pump in self._pumps:
                pump.drain(_LAST_READ_BYTES)
        ended = all(pump.ended for pump in self._pumps)
        if self.account is not None and self._child.killed_by and not self.account.is_settled:
            gevent.spawn(self._record_exit_settled, exit_code)
            return
        # Only a sandboxed process that failed by itself gets a denial verdict, which needs its last output.
        if state.sandbox is None or not exit_code or state.terminated or ended:
            self._record_exit(exit_code)
        else:
            self._outputs_ended = Event()
            gevent.spawn(self._record_exit_later, exit_code, self._outputs_ended)

    def _record_exit_later(self, exit_code: int, outputs_ended: Event) -> None:
        """Wait a moment for other processes that hold the outputs: the verdict reads what they write."""
        outputs_ended.wait(denial.WAIT_S)
        self._record_exit(exit_code)

    def _record_exit_settled(self, exit_code: int) -> None:
        """Wait a moment for the others of a process that was killed: they are counted in why."""
        if self.account is not None:
            self.account.wait_until_empty()
        self._record_exit(exit_code)

    def _record_exit(self, exit_code: int) -> None:
        state = self.state
        if self.account is not None:
            self._end = self.account.close(state.terminated, self._sent)
            if self.account.is_asked:
                state.end_text = end_members(*self._end)
        # `exit_code` cannot tell an exit with 137 from SIGKILL, but a terminal reports a signal as 1.
        seq = state.record_exit(exit_code, signalled=self._child.killed_by != 0)
        self._attachment.send(
            self._templates.exited(
                seq, state.exit_code or 0, state.sandbox_denied, state.sandbox_refusal, state.end_text
            )
        )
        self._news()
        if self.on_exit is not None:
            self.on_exit(self)
        # After a termination, descendants outside the group may hold the outputs open for ever.
        if state.terminated:
            self._stop_pumps()
        self._close_if_over()

    def _is_over(self) -> bool:
        return self.state.exited

    def _output_ended(self) -> None:
        if self._terminal_fd is not None:
            # The pump closes the terminal right after this.  Its number may then name another file, so
            # neither a resize nor the input queue may use it any more.
            self._terminal_fd = None
            if self._recorder is not None:
                self._recorder.terminal_fd = None
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
        self._pumps = []  # they refer back to this process; only the garbage collector would free that cycle
        if self.network is not None:
            self.network.close()
        if self._recorder is not None:
            self._recorder.closed(self.state.exit_code or 0)
        seq = self.state.record_closed()
        self._attachment.send(self._templates.closed(seq))
        self._news()
        self._on_closed()

    def _news(self) -> None:
        # A fresh event for each wait: nobody has to clear one that others still wait for.
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()
