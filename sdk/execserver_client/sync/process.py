"""The blocking twin of `execserver_client.process`; `build.py docs` writes it from there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

from execserver.client.rules.collecting import MAX_COLLECTED, CompletedProcess
from execserver.client.rules.event_log import Event, Exited, ReadState
from execserver.protocol.watching import LogResponse
from execserver_client import process as asynchronous
from execserver_client.sync import _shapes as shapes
from execserver_client.sync._portal import Portal


class Process:
    """One process; made by `Box.start`, `Box.attach` and `box.sessions.watch`.

    Several threads may use it.  Each event goes to exactly one of those that iterate; `wait` takes no event.
    Leaving a `with` block kills it if it still runs.
    """

    def __init__(self, portal: Portal, wrapped: asynchronous.Process) -> None:
        self._portal = portal
        self._wrapped = wrapped

    @property
    def process_id(self) -> str:
        """As in `execserver_client.Process`."""
        return self._wrapped.process_id

    @property
    def writer(self) -> bool:
        """As in `execserver_client.Process`."""
        return self._wrapped.writer

    @property
    def began_before(self) -> int:
        """As in `execserver_client.Process`."""
        return self._wrapped.began_before

    @property
    def exit_code(self) -> int | None:
        """The exit code, or None until the end of the process is known."""
        return self._wrapped.exit_code

    @property
    def exited(self) -> Exited | None:
        """The event of its end, None before; with `limits` it says why, and what the process used."""
        return self._wrapped.exited

    @property
    def last_seq(self) -> int:
        """The highest seq up to which every event has arrived or is known to be lost."""
        return self._wrapped.last_seq

    @property
    def finished(self) -> bool:
        """True once no more events can arrive; some may still wait to be taken."""
        return self._wrapped.finished

    @property
    def stdout(self) -> OutputStream:
        """The bytes of stdout, of a terminal all output, as they come; taken from the same events.

        What comes on stderr meanwhile is kept for `stderr`, up to 8 MiB; beyond it is an `OutputGap` there.
        """
        return OutputStream(self._portal, self._wrapped.stdout)

    @property
    def stderr(self) -> OutputStream:
        """The bytes of stderr, as `stdout` has those of stdout."""
        return OutputStream(self._portal, self._wrapped.stderr)

    @property
    def both(self) -> OutputStream:
        """The bytes of stdout and stderr in the order in which they came."""
        return OutputStream(self._portal, self._wrapped.both)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        for item in self._portal.call(shapes.step, self._wrapped):
            return item
        raise StopIteration

    def next_event(self, timeout: float | None = None) -> Event | None:
        """Return the next event in seq order, or None after `Closed` has been taken.

        Raises `OutputGap` where events are lost, `WaitTimeout` after `timeout` seconds, and
        `TransportClosed`, `ResumeFailed` or `RequestFailed` when the process can no longer be followed.
        """
        return self._portal.call(self._wrapped.next_event, timeout)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process and return its exit code, -1 if no server knows it.

        Takes no events.  Raises as `next_event` does.
        """
        return self._portal.call(self._wrapped.wait, timeout)

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
        return self._portal.call(
            self._wrapped.communicate,
            input,
            timeout,
            max_output=max_output,
            allow_gaps=allow_gaps,
        )

    def sandbox_denied(self) -> bool:
        """Return whether the sandbox made an ended process fail; asks the server if it did not report it."""
        return self._portal.call(self._wrapped.sandbox_denied)

    def read(
        self, after_seq: int | None = None, max_bytes: int | None = None, wait: float = 0.0
    ) -> ReadState:
        """Ask for retained output after `after_seq`, waiting up to `wait` seconds for some.

        With `after_seq` None reading goes on where the previous read ended; that position moves only when an
        answer has been received, so a lost answer loses nothing.  Independent of iteration, which returns all
        events.
        """
        return self._portal.call(self._wrapped.read, after_seq, max_bytes, wait)

    def write(self, data: bytes) -> None:
        """Write to the standard input; large data is sent in pieces of 1 MiB, in order.

        Returns once the box has taken it, which waits while the process does not read and much waits already.
        After a resume a piece whose answer was lost is sent again under its old id, and the box does not
        write it twice.  Raises `StdinUnavailable` if the process has no input, or no longer.
        """
        self._portal.call(self._wrapped.write, data)

    def write_all(self, pieces: Iterable[bytes]) -> None:
        """Write pieces one behind the other, up to 1 MiB of them before the first is answered.

        Otherwise as `write`, which waits for each answer and so takes longer for much.  What `pieces` raises
        is raised; what came before it is written, or on its way.
        """
        self._portal.call(self._wrapped.write_all, shapes.feed(pieces))

    def close_stdin(self) -> None:
        """Close the input of the process, if it is still open.

        Raises `UnsupportedByServer` on servers without this, `StdinUnavailable` if the process has ended.
        """
        self._portal.call(self._wrapped.close_stdin)

    def resize(self, rows: int, cols: int) -> None:
        """Change the size of the terminal.  Raises `UnsupportedByServer` if the server cannot."""
        self._portal.call(self._wrapped.resize, rows, cols)

    def signal(self, name: str) -> None:
        """Send a signal to the process group: `interrupt` on every server, others such as `TERM` on some."""
        self._portal.call(self._wrapped.signal, name)

    def terminate(self) -> bool:
        """Kill the process group at once; return whether the process was still running."""
        return self._portal.call(self._wrapped.terminate)

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
        later.  Raises `UnsupportedByServer` where there is no such log.
        """
        return self._portal.call(
            self._wrapped.log,
            after_seq,
            max_bytes,
            tail_bytes=tail_bytes,
            since_ms=since_ms,
        )

    def take(self) -> None:
        """Let this session write to the process, and no other (an extension of this project's server)."""
        self._portal.call(self._wrapped.take)

    def unwatch(self) -> None:
        """Follow the process of another session no longer; it goes on."""
        self._portal.call(self._wrapped.unwatch)

    def close(self) -> None:
        """Kill the process if it still runs, and wait for its end up to `ConnectOptions.close_timeout`.

        A process that is only watched goes on; nothing more is learned about it.
        """
        self._portal.call(self._wrapped.aclose)

    def __enter__(self) -> Self:
        self._portal.call(self._wrapped.__aenter__)
        return self

    def __exit__(self, *error: Any) -> None:
        self._portal.call(self._wrapped.__aexit__, *error)


class OutputStream:
    """Iterates over the bytes of one stream of a process, or of all; in pieces as they came.

    A step that raises `OutputGap`, or is cancelled, takes nothing away: the next one goes on.
    """

    def __init__(self, portal: Portal, wrapped: asynchronous.OutputStream) -> None:
        self._portal = portal
        self._wrapped = wrapped

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        for item in self._portal.call(shapes.step, self._wrapped):
            return item
        raise StopIteration
