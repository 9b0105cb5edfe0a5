"""A process on the box: its input, its events in order, its end.

    async with await box.start(["sh", "-c", "echo out; echo err >&2"]) as process:
        async for event in process:
            if isinstance(event, Output):
                print(event.stream, event.data)
        print("exit code", await process.wait())

Events wait here until they are taken.  Unread output is bounded: above
`ConnectOptions.max_unread_bytes` reading from the connection stops, so the box stops the process, and nothing
is lost; only where stopping would block this program for ever the oldest output is dropped in the end.  After
a lost connection iteration goes on where it was.  Output that is gone is raised as `OutputGap`, once, at its
place; the next step goes on after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from execserver.client.errors import ExecServerError, OutputGap, TransportClosed, WaitTimeout
from execserver.client.operations import processes as operations
from execserver.client.rules.collecting import MAX_COLLECTED, Collector, CompletedProcess
from execserver.client.rules.event_log import Event, Exited, Output, ReadState
from execserver.client.rules.process_state import ProcessState
from execserver.protocol.process_methods import PROCESS_CLOSE_STDIN, PROCESS_SIGNAL
from execserver_client._communicate import communicate
from execserver_client._driving import adrive
from execserver_client._flow import Gate, Inlet
from execserver_client._pulse import Pulse
from execserver_client._session import Session
from execserver_client._splitting import Aside

if TYPE_CHECKING:
    from execserver.protocol.watching import LogResponse

Begin: TypeAlias = Callable[[Callable[[], Coroutine[Any, Any, None]]], "asyncio.Task[None] | None"]
"""Runs a coroutine function as a task, unless it is too late for that."""


class Process:
    """One process; made by `Box.start`, `Box.attach` and `box.sessions.watch`.

    Several tasks may use it.  Each event goes to exactly one of those that iterate; `wait` takes no event.
    Leaving an `async with` block kills it if it still runs.
    """

    def __init__(
        self,
        session: Session,
        gate: Gate,
        process_id: str,
        *,
        begin: Begin,
        sandboxed: bool,
        collect_output: bool = True,
        after_seq: int = 0,
        close_timeout: float = 2.0,
    ) -> None:
        """Make the handle; `begin` runs a coroutine function as a task that outlives its caller."""
        self.process_id = process_id
        self.watched = False  # of another session
        self.writer = True  # whether this session writes, as far as is known
        self.began_before = 0  # the seq of the first event after a watch began, 0 for an own process
        self._session = session
        self._gate = gate
        self._begin = begin
        self._close_timeout = close_timeout
        self._inlet = Inlet()
        self._known = ProcessState(
            process_id, sandboxed=sandboxed, collect_output=collect_output, after_seq=after_seq
        )
        self._aside: Aside | None = None  # made when one stream is read alone
        self._changed = Pulse()
        self._write_lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Process {self.process_id}>"

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
    def finished(self) -> bool:
        """True once no more events can arrive; some may still wait to be taken."""
        return self._known.finished

    @property
    def stdout(self) -> OutputStream:
        """The bytes of stdout, of a terminal all output, as they come; taken from the same events.

        What comes on stderr meanwhile is kept for `stderr`, up to 8 MiB; beyond it is an `OutputGap` there.
        """
        return OutputStream(self, "stdout")

    @property
    def stderr(self) -> OutputStream:
        """The bytes of stderr, as `stdout` has those of stdout."""
        return OutputStream(self, "stderr")

    @property
    def both(self) -> OutputStream:
        """The bytes of stdout and stderr in the order in which they came."""
        return OutputStream(self, None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        event = await self.next_event()
        if event is None:
            raise StopAsyncIteration
        return event

    async def next_event(self, timeout: float | None = None) -> Event | None:
        """Return the next event in seq order, or None after `Closed` has been taken.

        Raises `OutputGap` where events are lost, `WaitTimeout` after `timeout` seconds, and
        `TransportClosed`, `ResumeFailed` or `RequestFailed` when the process can no longer be followed.
        """
        self._inlet.read_by_caller()
        if not self._known.can_take:
            await self._await(lambda: self._known.can_take, timeout)
        try:
            return self._known.take()
        finally:
            self._record_held()

    async def next_piece(self, name: str | None) -> bytes | None:
        """Return the next bytes of `stdout`, `stderr` or (None) of any; None behind the last ones.

        Raises as `next_event` does.
        """
        aside = self._aside = self._aside or Aside(self.process_id)
        while True:
            self._inlet.read_by_caller()
            await self._await(lambda: aside.has(name) or self._known.can_take, None)
            if aside.has(name):
                return aside.take(name)
            try:
                event = self._known.take()
            except OutputGap as gap:
                aside.put_gap(gap, name)
                self._changed.beat()
                raise
            finally:
                self._record_held()
            if event is None:
                return None
            if isinstance(event, Output):
                if name is None or aside.stream_of(event) == name:
                    return event.data
                aside.put(event)
                self._changed.beat()  # another task may wait for it

    async def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process and return its exit code, -1 if no server knows it.

        Takes no events.  Raises as `next_event` does.
        """
        await self._await(lambda: self._known.has_ended, timeout)
        return self._known.status

    async def communicate(
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
        return await communicate(self, input, timeout, Collector(max_output), allow_gaps)

    async def sandbox_denied(self) -> bool:
        """Return whether the sandbox made an ended process fail; asks the server if it did not report it."""
        return await adrive(self._session, operations.sandbox_denied(self._known, self._session.extensions))

    async def read(
        self, after_seq: int | None = None, max_bytes: int | None = None, wait: float = 0.0
    ) -> ReadState:
        """Ask for retained output after `after_seq`, waiting up to `wait` seconds for some.

        With `after_seq` None reading goes on where the previous read ended; that position moves only when an
        answer has been received, so a lost answer loses nothing.  Independent of iteration, which returns all
        events.
        """
        wanted = operations.read(self._known, self._session.extensions, after_seq, max_bytes, wait)
        return await adrive(self._session, wanted)

    async def write(self, data: bytes) -> None:
        """Write to the standard input; large data is sent in pieces of 1 MiB, in order.

        Returns once the box has taken it, which waits while the process does not read and much waits already.
        After a resume a piece whose answer was lost is sent again under its old id, and the box does not
        write it twice.  Raises `StdinUnavailable` if the process has no input, or no longer.
        """
        async with self._write_lock:
            await adrive(self._session, operations.write(self._known, data))

    async def write_all(self, pieces: Iterable[bytes] | AsyncIterable[bytes]) -> None:
        """Write pieces one behind the other, up to 1 MiB of them before the first is answered.

        Otherwise as `write`, which waits for each answer and so takes longer for much.  What `pieces` raises
        is raised; what came before it is written, or on its way.
        """
        from execserver_client._pipelining import write_all  # late: few programs send much

        async with self._write_lock:
            await write_all(self._session, self._known, pieces)

    async def close_stdin(self) -> None:
        """Close the input of the process, if it is still open.

        Raises `UnsupportedByServer` on servers without this, `StdinUnavailable` if the process has ended.
        """
        async with self._write_lock:
            await adrive(self._session, operations.close_stdin(self._known, self._session.extensions))

    def require_close_stdin(self) -> None:
        """Raise `UnsupportedByServer` if `close_stdin` would."""
        operations.require(self._session.extensions.process_close_stdin, PROCESS_CLOSE_STDIN)

    async def resize(self, rows: int, cols: int) -> None:
        """Change the size of the terminal.  Raises `UnsupportedByServer` if the server cannot."""
        await adrive(self._session, operations.resize(self._known, self._session.extensions, rows, cols))

    async def signal(self, name: str) -> None:
        """Send a signal to the process group: `interrupt` on every server, others such as `TERM` on some."""
        await self._session.request(PROCESS_SIGNAL.name, {"processId": self.process_id, "signal": name})

    async def terminate(self) -> bool:
        """Kill the process group at once; return whether the process was still running."""
        return await adrive(self._session, operations.terminate(self._known))

    async def log(
        self,
        after_seq: int | None = None,
        max_bytes: int | None = None,
        *,
        tail_bytes: int | None = None,
        since_ms: int | None = None,
    ) -> LogResponse:
        """Return a page of all output that the server keeps, also on disk; an empty one is the end for now.

        The next page comes after `next_seq` - 1.  `tail_bytes` and `since_ms` (Unix milliseconds) begin
        later.  Raises `UnsupportedByServer` where there is no such log.
        """
        wanted = operations.log(
            self._known,
            self._session.extensions,
            after_seq=after_seq,
            max_bytes=max_bytes,
            tail_bytes=tail_bytes,
            since_ms=since_ms,
        )
        return await adrive(self._session, wanted)

    async def take(self) -> None:
        """Let this session write to the process, and no other (an extension of this project's server)."""
        self.writer = await adrive(self._session, operations.take(self._known))

    async def unwatch(self) -> None:
        """Follow the process of another session no longer; it goes on."""
        await adrive(self._session, operations.unwatch(self._known))
        self.fail(TransportClosed("this process is not watched any more"))

    async def aclose(self) -> None:
        """Kill the process if it still runs, and wait for its end up to `ConnectOptions.close_timeout`.

        A process that is only watched goes on; nothing more is learned about it.
        """
        if self._known.has_ended or self._known.failure is not None:
            return
        # A task of its own: a caller that is cancelled must not keep the process from being killed.
        if (ending := self._begin(self._end)) is not None:
            await asyncio.wait([ending], timeout=self._close_timeout)

    def abandon(self) -> None:
        """Have the process killed, and forget its output: nobody will use this any more."""
        self._known.discard()
        self._record_held()
        if not self._known.finished:
            self._begin(self._end)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def deliver(self, event: Event) -> bool:
        """Add an event that the server sent; return whether nothing more can come."""
        self._known.deliver(event, self._gate.hard_limit)
        self._update()
        return self._known.finished

    def deliver_gap(self, first_seq: int, last_seq: int, lost_bytes: int | None) -> None:
        """Note that events will not come: this client was too slow for a process that it watches."""
        self._known.skip(first_seq, last_seq, lost_bytes)
        self._update()

    async def catch_up(self, settled: Callable[[Process], None]) -> None:
        """Ask the server for everything after the last known event; called on each new connection.

        `settled` is called with this process, whatever came of it.
        """
        try:
            await adrive(self._session, operations.catch_up(self._known, self._session.extensions))
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
            self._changed.beat()

    def raise_failure(self) -> None:
        """Raise the error of `fail`, if the process can no longer be followed."""
        self._known.raise_failure()

    async def _end(self) -> None:
        wanted = operations.unwatch(self._known) if self.watched else operations.kill(self._known)
        try:
            await adrive(self._session, wanted)
            if not self.watched:
                await self._await(lambda: self._known.has_ended, self._close_timeout)
        except ExecServerError:
            pass  # the session has ended, or the box is slow: it ends what nobody follows by itself

    def _update(self) -> None:
        self._record_held()
        self._changed.beat()

    def _record_held(self) -> None:
        self._gate.update(self._inlet, self._known.held)

    async def _await(self, ready: Callable[[], bool], timeout: float | None) -> None:
        clock = asyncio.get_running_loop().time
        deadline = None if timeout is None else clock() + timeout
        while not ready():
            self._known.raise_failure()
            if deadline is not None and clock() >= deadline:
                raise WaitTimeout(f"process {self.process_id}: nothing within {timeout:g} s")
            with self._gate.waiting():
                if deadline is None:
                    await self._changed.wait()
                    continue
                try:
                    async with asyncio.timeout_at(deadline):
                        await self._changed.wait()
                except TimeoutError:
                    pass  # the next round finds it, unless it is ready at the last moment


class OutputStream:
    """Iterates over the bytes of one stream of a process, or of all; in pieces as they came.

    A step that raises `OutputGap`, or is cancelled, takes nothing away: the next one goes on.
    """

    __slots__ = ("_name", "_process")

    def __init__(self, process: Process, name: str | None) -> None:
        self._process = process
        self._name = name

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        piece = await self._process.next_piece(self._name)
        if piece is None:
            raise StopAsyncIteration
        return piece
