"""What a handle of a process knows, without I/O: events, write ids, and why it cannot be followed.

Under the handles of both clients, the one for gevent and the one for asyncio.  The owner makes the calls and
waits; this says what to send, and what an answer means.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from execserver.client.errors import ExecServerError, OutputGap, StdinUnavailable, kept
from execserver.client.rules import wire
from execserver.client.rules.event_log import UNKNOWN_EXIT, Event, EventLog, Exited, Output, ReadState
from execserver.protocol.process import ReadParams, WriteParams, WriteStatus

if TYPE_CHECKING:
    from execserver.client.rules.write_template import WriteTemplate

_WRITE_PIECE: Final = 1024 * 1024


class ProcessState:
    """The state of one process as far as this client knows it.

    `failure` says why it can no longer be followed.  `denied`: whether the sandbox made it fail, None while
    that is not known.
    """

    __slots__ = ("_log", "_read_position", "_write_prefix", "_writes", "denied", "failure", "process_id")

    def __init__(
        self, process_id: str, *, sandboxed: bool, collect_output: bool = True, after_seq: int = 0
    ) -> None:
        self.process_id = process_id
        self.failure: ExecServerError | None = None
        self.denied: bool | None = None if sandboxed else False
        self._log = EventLog(process_id, after_seq, collect_output)
        self._read_position = after_seq
        self._writes = 0
        # Unique among clients: the server does not write the bytes of a known id again.
        self._write_prefix = os.urandom(4).hex() + "-"

    @property
    def exit_code(self) -> int | None:
        """The exit code, or None until the end of the process is known."""
        return None if self._log.exit is None else self._log.exit.code

    @property
    def last_seq(self) -> int:
        """The highest seq up to which every event has arrived or is known to be lost."""
        return self._log.last_seq

    @property
    def finished(self) -> bool:
        """True once no more events can arrive; some may still wait to be taken."""
        return self._log.complete or self.failure is not None

    @property
    def can_take(self) -> bool:
        """True if `take` has something to say: an event, a gap, or that nothing follows."""
        return self._log.pending or self._log.complete

    @property
    def has_ended(self) -> bool:
        """True once `status` is known."""
        return self._log.exit is not None or self._log.complete

    @property
    def status(self) -> int:
        """The exit code of a process that has ended, -1 if no server knows it."""
        return UNKNOWN_EXIT if self._log.exit is None else self._log.exit.code

    @property
    def exited(self) -> Exited | None:
        """The event of the end, with all that the server has said about it; None before."""
        return self._log.exit

    @property
    def held(self) -> int:
        """How many bytes wait to be taken, as flow control counts: 0 once nothing more can come."""
        return 0 if self._log.complete else self._log.held

    def deliver(self, event: Event, hard_limit: int) -> None:
        """Add an event that the server sent; above `hard_limit` bytes the oldest output becomes a gap."""
        self._log.add(event)
        if self._log.held > hard_limit:
            self._log.shed(hard_limit)

    def pass_by(self, output: Output, take: Callable[[Output], Output | None]) -> Output | None:
        """Have output taken that comes right behind all that is known, while nothing waits to be taken.

        Returns what is left to be delivered: what `take` has left, or the output if it has to wait.
        """
        return self._log.pass_by(output, take)

    def skip(self, first_seq: int, last_seq: int, lost_bytes: int | None) -> None:
        """Note that events will not come: this client was too slow for a process that it watches."""
        self._log.skip(first_seq, last_seq, lost_bytes)

    def settle(self, state: ReadState) -> None:
        """Take the answer to a read after `last_seq`, which says what has been missed."""
        self._log.account_for(state)

    def take(self) -> Event | None:
        """Return the next event, None behind the last one.  Raises `OutputGap` where events are lost."""
        item = self._log.take()
        if isinstance(item, OutputGap):
            raise kept(item)  # a copy: raised itself, it and the caller's frame would hold each other
        return item

    def discard(self) -> None:
        """Drop the output that waits and keep none that comes: nobody will take it."""
        self._log.discard()

    def fail(self, error: ExecServerError) -> bool:
        """Follow the process no longer; return whether that is news.  Events that arrived stay."""
        if self.finished:
            return False
        self.failure = kept(error)
        return True

    def raise_failure(self) -> None:
        """Raise the error of `fail`, if the process can no longer be followed."""
        if self.failure is not None:
            raise kept(self.failure)

    def known_denial(self) -> bool | None:
        """Return whether the sandbox made the process fail, None if only the server knows."""
        if self.denied is None and self._log.exit is not None:
            self.denied = self._log.exit.sandbox_denied
        return self.denied

    def missed(self) -> ReadParams:
        """Return what asks for all that has come after the last known event."""
        return self.reading(self.last_seq, None, 0.0)

    def reading(self, after_seq: int | None, max_bytes: int | None, wait: float) -> ReadParams:
        """Return the params of a read; `after_seq` None is behind what `has_read` noted last."""
        return ReadParams(
            process_id=self.process_id,
            after_seq=self._read_position if after_seq is None else after_seq,
            max_bytes=max_bytes,
            wait_ms=round(wait * 1000),
        )

    def has_read(self, state: ReadState) -> None:
        """Note that everything in an answer has been received."""
        self._read_position = max(self._read_position, state.next_seq - 1)

    def writing(self, data: bytes) -> Iterator[WriteParams]:
        """Cut input into pieces of 1 MiB, each with a write id of its own; no bytes are one empty piece."""
        wire.check_bytes(data)
        for start in range(0, len(data) or 1, _WRITE_PIECE):
            yield self.writing_piece(data[start : start + _WRITE_PIECE])

    def writing_piece(self, data: bytes) -> WriteParams:
        """Return what writes at most 1 MiB, with a write id of its own."""
        return self.numbered_piece(self.next_write(), data)

    def next_write(self) -> int:
        """Return the number of a further write."""
        self._writes += 1
        return self._writes

    def numbered_piece(self, number: int, data: bytes) -> WriteParams:
        """Return what writes at most 1 MiB; the number makes its write id."""
        return WriteParams(process_id=self.process_id, chunk=data, write_id=f"{self._write_prefix}{number}")

    def write_template(self) -> WriteTemplate:
        """Return what makes requests of numbers and short pieces."""
        from execserver.client.rules.write_template import WriteTemplate  # late: few type

        return WriteTemplate(self.process_id, self._write_prefix)

    def check_written(self, status: WriteStatus) -> None:
        """Raise `StdinUnavailable` if the server did not take a piece of input."""
        if status is not WriteStatus.ACCEPTED:
            raise StdinUnavailable(self.process_id, status.value)

    def check_closed(self, status: WriteStatus) -> None:
        """Raise `StdinUnavailable` if the input was not closed, and had not been."""
        if status not in (WriteStatus.ACCEPTED, WriteStatus.STDIN_CLOSED):
            raise StdinUnavailable(self.process_id, status.value)
