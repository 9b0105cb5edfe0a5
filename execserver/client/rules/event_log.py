"""The events of one process in the order of `seq`, and which missing ones are lost or only late.

Events come from notifications, in any order and perhaps twice, and from `process/read` answers after a
resume.  The log returns them in seq order and holds an event back until all lower ones have come (wire
contract, sections 7 and 9).  A `process/read` answer settles every seq below its `nextSeq`: what neither it
nor a notification brought is an `OutputGap`.  No I/O; the owner bounds the memory with `shed`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from execserver.client.errors import OutputGap
from execserver.protocol.resource_limits import ProcessEnd, ResourceUsage

UNKNOWN_EXIT: Final = -1  # the contract's exit code if the real one is unknown
_EVENT_OVERHEAD: Final = 200  # bytes that an event costs besides its output
_MANY: Final = 1000


class Output(msgspec.Struct, frozen=True):
    """Some bytes of output: `stream` is `stdout`, `stderr` or, on a terminal, `pty`."""

    seq: int
    stream: str
    data: bytes


class Exited(msgspec.Struct, frozen=True):
    """The process ended; output may still follow.

    `sandbox_denied` is None if the server sent none.  `ended` is why, if the process did not exit by itself,
    and `usage` what it used; both are None unless its start had limits.
    """

    seq: int
    code: int
    sandbox_denied: bool | None = None
    ended: ProcessEnd | None = None
    usage: ResourceUsage | None = None


class Closed(msgspec.Struct, frozen=True):
    """The last event of a process."""

    seq: int


Event = Output | Exited | Closed


class ReadState(msgspec.Struct, frozen=True):
    """A `process/read` answer: the retained output after the asked position, and the state of the process.

    `oldest_seq` and `lost_bytes` are None if the server does not report what it no longer retains.
    """

    chunks: tuple[Output, ...]
    next_seq: int
    exited: bool
    exit_code: int | None
    closed: bool
    sandbox_denied: bool = False
    failure: str | None = None
    oldest_seq: int | None = None
    lost_bytes: int | None = None
    ended: ProcessEnd | None = None
    usage: ResourceUsage | None = None


class EventLog:
    """Collects the events of one process; `held` is the memory of those not taken yet, in bytes.

    With `collect_output` False output and its gaps are counted but not kept.
    """

    __slots__ = ("_ahead", "_collect_output", "_next", "_process_id", "_ready", "complete", "exit", "held")

    def __init__(self, process_id: str, after_seq: int = 0, collect_output: bool = True) -> None:
        self._process_id = process_id
        self._collect_output = collect_output
        self._next = after_seq + 1
        self._ahead: dict[int, Event] = {}
        self._ready: deque[Event | OutputGap] = deque()
        self.held = 0
        self.exit: Exited | None = None
        self.complete = False

    @property
    def last_seq(self) -> int:
        """The highest seq up to which nothing is missing."""
        return self._next - 1

    @property
    def pending(self) -> bool:
        """True if `take` has something to return."""
        return bool(self._ready)

    def add(self, event: Event) -> None:
        """Add an event; one that is known already changes nothing."""
        if event.seq < self._next or event.seq in self._ahead or self.complete:
            return
        if isinstance(event, Exited):
            if self.exit is not None:
                return  # a second one is a server's mistake, and `shed` could not drop any number of them
            self.exit = event
        self._keep(event)

    def pass_by(self, output: Output, take: Callable[[Output], Output | None]) -> Output | None:
        """Give output to `take` if it would be all that there is to take; return what is left to be added."""
        if self._ready or self._ahead or self.complete or not self._collect_output:
            return output
        if output.seq != self._next:
            return output
        rest = take(output)
        if rest is None:
            self._next += 1
        return rest

    def _keep(self, event: Event) -> None:
        self._ahead[event.seq] = event
        self.held += _size(event)
        self._advance()

    def take(self) -> Event | OutputGap | None:
        """Return the next event in order, a gap where events are lost, or None if nothing is ready."""
        if not self._ready:
            return None
        item = self._ready.popleft()
        self.held -= _size(item)
        return item

    def discard(self) -> None:
        """Drop the output that waits and keep none that comes: nobody will take it."""
        self._collect_output = False
        waiting, self._ready = self._ready, deque()
        for item in waiting:
            self._make_ready(item)

    def account_for(self, state: ReadState) -> None:
        """Settle every seq below `next_seq` with the answer to a read after `last_seq`.

        An exit that fits no missing seq happened before this log's first position; it is known, but it is no
        event here.
        """
        for chunk in state.chunks:
            self.add(chunk)
        if state.closed:
            self.add(Closed(state.next_seq - 1))
        missing = self._missing_before(state.next_seq)
        if state.exited and self.exit is None:
            # The server drops the oldest output first, so the exit belongs into the highest missing range: a
            # hole in the middle, or the end of the lost range.
            seq = missing[-1][1] if missing else 0
            code = UNKNOWN_EXIT if state.exit_code is None else state.exit_code
            self.exit = Exited(seq, code, state.sandbox_denied, state.ended, state.usage)
            if seq >= self._next:
                self._keep(self.exit)
            missing = self._missing_before(state.next_seq)
        lost_bytes = state.lost_bytes
        for first, last in missing:
            self._skip(first, last, lost_bytes)
            lost_bytes = None

    def skip(self, first_seq: int, last_seq: int, lost_bytes: int | None) -> None:
        """Settle the missing events of a range: the server will not send them."""
        for first, last in self._missing_before(last_seq + 1):
            if last >= first_seq:
                self._skip(first, last, lost_bytes)
                lost_bytes = None

    def shed(self, bound: int) -> None:
        """Drop the oldest output until at most `bound` bytes are held; a gap takes its place."""
        kept: deque[Event | OutputGap] = deque()
        ahead: Iterator[int] | None = None
        while self.held > bound:
            if self._ready:
                self._drop(self._ready.popleft(), kept)
                continue
            if ahead is None:
                ahead = iter(sorted(self._ahead))
                if len(self._ahead) > _MANY:
                    bound = bound * 3 // 4  # so that the next event does not make it sort them again
            first = next((seq for seq in ahead if seq >= self._next), None)
            if first is None:
                break
            self._skip(self._next, first - 1, None)
        self._ready.extendleft(reversed(kept))

    def _advance(self) -> None:
        while (event := self._ahead.pop(self._next, None)) is not None:
            self._make_ready(event)
            self._next += 1
            if isinstance(event, Closed):
                self.complete = True

    def _make_ready(self, item: Event | OutputGap) -> None:
        if self._collect_output or isinstance(item, Exited | Closed):
            self._ready.append(item)
        else:
            self.held -= _size(item)

    def _missing_before(self, end: int) -> list[tuple[int, int]]:
        """Return the unknown ranges (first, last) below `end`, lowest first."""
        missing: list[tuple[int, int]] = []
        first = self._next
        for seq in sorted(seq for seq in self._ahead if seq < end):
            if seq > first:
                missing.append((first, seq - 1))
            first = seq + 1
        if first < end:
            missing.append((first, end - 1))
        return missing

    def _skip(self, first: int, last: int, lost_bytes: int | None) -> None:
        gap = OutputGap(self._process_id, first, last, lost_bytes)
        self.held += _size(gap)
        self._make_ready(gap)
        self._next = last + 1
        self._advance()

    def _drop(self, item: Event | OutputGap, kept: deque[Event | OutputGap]) -> None:
        """Move the oldest item to `kept`, output as a gap; adjacent gaps become one."""
        if isinstance(item, Output):
            gap = OutputGap(self._process_id, item.seq, item.seq, len(item.data))
        elif isinstance(item, OutputGap):
            gap = item
        else:
            kept.append(item)
            return
        self.held -= _size(item)
        before = kept[-1] if kept else None
        if isinstance(before, OutputGap):
            kept[-1] = _joined(before, gap)
        else:
            kept.append(gap)
            self.held += _size(gap)


def _joined(gap: OutputGap, behind: OutputGap) -> OutputGap:
    known = None not in (gap.lost_bytes, behind.lost_bytes)
    lost = (gap.lost_bytes or 0) + (behind.lost_bytes or 0) if known else None
    return OutputGap(gap.process_id, gap.first_seq, behind.last_seq, lost)


def _size(item: Event | OutputGap) -> int:
    return _EVENT_OVERHEAD + (len(item.data) if isinstance(item, Output) else 0)
