"""A process on the server: its input, its events in order, its end.

Events come as notifications and wait here until they are taken; iterating (or `next_event`, `communicate`)
takes them.  After a lost connection the process catches up with `process/read` from the last known event, so
iteration goes on where it was.  What the server no longer has is raised as `OutputGap`, once, at its place,
and the next step goes on after it.  The `flow_rules` module limits how much may wait unread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Self

from gevent.event import Event as Signal

from execserver.client.communicate import communicate
from execserver.client.errors import ExecServerError, TransportClosed, WaitTimeout
from execserver.client.greenlets.flow import Gate, Inlet
from execserver.client.greenlets.session import Session
from execserver.client.operations import processes as operations
from execserver.client.operations.call import drive
from execserver.client.rules.collecting import MAX_COLLECTED, CompletedProcess
from execserver.client.rules.event_log import Event, Exited, Output, ReadState
from execserver.client.rules.process_state import ProcessState
from execserver.eventloop.locks import BoundedSemaphore
from execserver.protocol.process_methods import PROCESS_CLOSE_STDIN, PROCESS_SIGNAL

if TYPE_CHECKING:
    from execserver.client.greenlets.quick_writes import QuickWrites
    from execserver.protocol.watching import LogResponse


class RemoteProcess:
    """One process; made by `ExecServerClient.start` or `attach_process`.

    Several greenlets may use it.  Each event goes to exactly one of those that iterate; `wait` takes no
    event.
    """

    def __init__(
        self,
        session: Session,
        gate: Gate,
        process_id: str,
        *,
        sandboxed: bool,
        collect_output: bool = True,
        after_seq: int = 0,
    ) -> None:
        self.process_id = process_id
        self.watched = False  # of another session
        self._writer = True
        self._writer_changed: Callable[[bool], object] | None = None
        self.began_before = 0  # the seq of the first event after a watch began, 0 for an own process
        self._session = session
        self._gate = gate
        self._inlet = Inlet()
        self._known = ProcessState(
            process_id, sandboxed=sandboxed, collect_output=collect_output, after_seq=after_seq
        )
        self._changed = Signal()
        self._take_at_once: Callable[[Output], Output | None] | None = None
        self._write_lock = BoundedSemaphore(1)

    def __repr__(self) -> str:
        return f"<RemoteProcess {self.process_id}>"

    @property
    def exit_code(self) -> int | None:
        """The exit code, or None until the end of the process is known."""
        return self._known.exit_code

    @property
    def exited(self) -> Exited | None:
        """The event of its end, None before; with `limits` it says why, and what the process used."""
        return self._known.exited

    @property
    def last_seq(self) -> int:
        """The highest seq up to which every event has arrived or is known to be lost."""
        return self._known.last_seq

    @property
    def has_past(self) -> bool:
        """True while something from before the watch began may still come, or waits to be taken."""
        return self.began_before > 0 and (self._known.can_take or self.last_seq + 1 < self.began_before)

    @property
    def finished(self) -> bool:
        """True once no more events can arrive; some may still wait to be taken."""
        return self._known.finished

    @property
    def writer(self) -> bool:
        """Whether this session writes to the process, as far as is known."""
        return self._writer

    @writer.setter
    def writer(self, writes: bool) -> None:
        """Note what the server says, and tell whoever watches it."""
        changed, self._writer = writes is not self._writer, writes
        if changed and self._writer_changed is not None:
            self._writer_changed(writes)

    def watch_writer(self, changed: Callable[[bool], object] | None) -> None:
        """Have it told when another session writes from now on, or this one again; must not block."""
        self._writer_changed = changed

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        event = self.next_event()
        if event is None:
            raise StopIteration
        return event

    def next_event(self, timeout: float | None = None) -> Event | None:
        """Return the next event in seq order, or None after `Closed` has been taken.

        Raises `OutputGap` where events are lost, `WaitTimeout` after `timeout` seconds, and
        `TransportClosed`, `ResumeFailed` or `RequestFailed` when the process can no longer be followed.
        """
        self._inlet.read_by_caller()
        self._await(lambda: self._known.can_take, timeout)
        try:
            return self._known.take()
        finally:
            self._record_held()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process and return its exit code, -1 if no server knows it.

        Takes no events.
        """
        self._await(lambda: self._known.has_ended, timeout)
        return self._known.status

    def sandbox_denied(self) -> bool:
        """Return whether the sandbox made an ended process fail; asks the server if it did not report it."""
        return drive(self._session, operations.sandbox_denied(self._known, self._session.extensions))

    def read(
        self, after_seq: int | None = None, max_bytes: int | None = None, wait: float = 0.0
    ) -> ReadState:
        """Ask for retained output after `after_seq`, waiting up to `wait` seconds for some.

        With `after_seq` None reading goes on where the previous read ended; that position moves only when an
        answer has been received, so a lost answer loses nothing.  Independent of iteration, which returns all
        events.
        """
        extensions = self._session.extensions
        return drive(self._session, operations.read(self._known, extensions, after_seq, max_bytes, wait))

    def communicate(
        self,
        input: bytes | None = None,
        timeout: float | None = None,
        *,
        max_output: int = MAX_COLLECTED,
        allow_gaps: bool = False,
    ) -> CompletedProcess:
        """Write `input` and close the process's stdin, collect its output and wait for its end.

        Raises `OutputGap` at the end when output was lost, unless `allow_gaps`; `WaitTimeout` after `timeout`
        seconds and `OutputTooLarge` beyond `max_output` bytes, both without ending the process.
        """
        return communicate(self, input, timeout, max_output, allow_gaps)

    def write(self, data: bytes) -> None:
        """Queue bytes for the standard input; large data is sent in pieces of 1 MiB, in order.

        After a resume a piece whose answer was lost is sent again under its old id, and the server does not
        write it twice.  Raises `StdinUnavailable` if the process has no input, or no longer.
        """
        with self._write_lock:
            drive(self._session, operations.write(self._known, data))

    def write_all(self, pieces: Iterable[bytes]) -> None:
        """Write pieces one behind the other, up to 1 MiB of them before the first is answered.

        Otherwise as `write`, which waits for each answer and so takes longer for much.
        """
        from execserver.client.greenlets.pipelining import write_all  # late: few programs send much

        with self._write_lock:
            write_all(self._session, self._known, pieces)

    def close_stdin(self) -> None:
        """Close the input of the process, if it is still open.

        Raises `UnsupportedByServer` on servers without this extension, `StdinUnavailable` if the process has
        ended.
        """
        with self._write_lock:
            drive(self._session, operations.close_stdin(self._known, self._session.extensions))

    def require_close_stdin(self) -> None:
        """Raise `UnsupportedByServer` if `close_stdin` would."""
        operations.require(self._session.extensions.process_close_stdin, PROCESS_CLOSE_STDIN)

    def resize(self, rows: int, cols: int) -> None:
        """Change the size of the terminal.  Raises `UnsupportedByServer` if the server cannot."""
        drive(self._session, operations.resize(self._known, self._session.extensions, rows, cols))

    def signal(self, name: str) -> None:
        """Send a signal to the process group: `interrupt` on every server, others such as `TERM` on some."""
        self._session.request(PROCESS_SIGNAL.name, {"processId": self.process_id, "signal": name})

    def terminate(self) -> bool:
        """Kill the process group at once; return whether the process was still running."""
        return drive(self._session, operations.terminate(self._known))

    def log(
        self,
        after_seq: int | None = None,
        max_bytes: int | None = None,
        *,
        tail_bytes: int | None = None,
        since_ms: int | None = None,
    ) -> LogResponse:
        """Return a page of all output that the server keeps, also on disk; an empty one is the end for now.

        The next page comes after `next_seq` - 1.  `tail_bytes` and `since_ms` (Unix milliseconds) begin
        later (an extension of this project's server).
        """
        wanted = operations.log(
            self._known,
            self._session.extensions,
            after_seq=after_seq,
            max_bytes=max_bytes,
            tail_bytes=tail_bytes,
            since_ms=since_ms,
        )
        return drive(self._session, wanted)

    def take(self) -> None:
        """Let this session write to the process, and no other (an extension of this project's server)."""
        self.writer = drive(self._session, operations.take(self._known))

    def unwatch(self) -> None:
        """Follow the process of another session no longer; it goes on."""
        drive(self._session, operations.unwatch(self._known))
        self.fail(TransportClosed("this process is not watched any more"))

    def deliver_gap(self, first_seq: int, last_seq: int, lost_bytes: int | None) -> None:
        """Note that events will not come: this client was too slow for a process that it watches."""
        self._known.skip(first_seq, last_seq, lost_bytes)
        self._update()

    def take_at_once(self, take: Callable[[Output], Output | None] | None) -> None:
        """Have output that is next, while none waits, taken where it arrives; None ends that.

        `take` must not block, and returns what it leaves to be taken as all events are.
        """
        self._take_at_once = take

    def quick_writes(self, attention: Callable[[], object]) -> QuickWrites:
        """Return a way to write without waiting, for a caller who alone writes to this process."""
        from execserver.client.greenlets.quick_writes import QuickWrites  # late: few type

        return QuickWrites(self._session, self._known, attention)

    def deliver(self, event: Event) -> bool:
        """Add an event that the server sent; return whether nothing more can come."""
        take = self._take_at_once
        if take is not None and isinstance(event, Output):
            rest = self._known.pass_by(event, take)
            if rest is None:
                return False
            event = rest
        self._known.deliver(event, self._gate.hard_limit)
        self._update()
        return self._known.finished

    def catch_up(self, settled: Callable[[RemoteProcess], None]) -> None:
        """Ask the server for everything after the last known event; called on each new connection.

        `settled` is called with this process, whatever came of it.
        """
        try:
            drive(self._session, operations.catch_up(self._known, self._session.extensions))
        except TransportClosed:
            pass  # the session has ended, and `fail` was called
        except ExecServerError as error:
            self.fail(error)
        else:
            self._update()
        settled(self)

    def fail(self, error: ExecServerError) -> None:
        """Stop following the process: events that arrived can still be taken, then `error` is raised."""
        if self._known.fail(error):
            self._changed.set()

    def raise_failure(self) -> None:
        """Raise the error of `fail`, if the process can no longer be followed."""
        self._known.raise_failure()

    def _update(self) -> None:
        self._record_held()
        self._changed.set()

    def _record_held(self) -> None:
        # A process that has ended must not stop the connection: nothing more can come from it.
        self._gate.update(self._inlet, self._known.held)

    def _await(self, ready: Callable[[], bool], timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not ready():
            self._known.raise_failure()
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise WaitTimeout(f"process {self.process_id}: nothing within {timeout:g} s")
            self._changed.clear()
            with self._gate.waiting():
                self._changed.wait(left)
