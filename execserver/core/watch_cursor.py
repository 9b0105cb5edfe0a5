"""Where one watcher is in the events of a process, and what comes next for it.

A watcher takes events when its client has room.  What the log has dropped meanwhile becomes a `Gap`, so a
slow watcher costs the process nothing and knows what it missed.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from execserver.core.output_log import Chunk
from execserver.core.process_state import ProcessState

_MAX_CHUNKS = 2048  # taken at once, so that tiny ones do not hold the loop


class Gap(NamedTuple):
    """The events from `first_seq` to `last_seq` are lost; `lost_bytes` is None where that is not known."""

    first_seq: int
    last_seq: int
    lost_bytes: int | None


class Exit(NamedTuple):
    """The process has exited; the rest is in its state."""

    seq: int


class Close(NamedTuple):
    """Nothing follows."""

    seq: int


WatchEvent: TypeAlias = Chunk | Gap | Exit | Close


class WatchCursor:
    """The position of one watcher: `seq` is that of the last event it has taken."""

    __slots__ = ("_bytes", "_state", "finished", "seq")

    def __init__(self, state: ProcessState, after_seq: int | None) -> None:
        """Begin behind `after_seq`; None stands for now."""
        newest = state.log.next_seq - 1
        self._state = state
        # A process that is closed still tells so, whatever the watcher asks for.
        self.seq = min(newest - 1 if state.closed else newest, newest if after_seq is None else after_seq)
        self._bytes = state.log.bytes_until(self.seq)
        self.finished = False

    def pack(self) -> tuple[int, int | None, bool]:
        """Return what `restore` takes."""
        return self.seq, self._bytes, self.finished

    def restore(self, seq: int, bytes_taken: int | None, finished: bool) -> None:
        """Go on from where another cursor of the same process was."""
        self.seq, self._bytes, self.finished = seq, bytes_taken, finished

    @property
    def behind(self) -> bool:
        """Whether there is something to take."""
        return self.seq < self._state.log.next_seq - 1

    def skip(self) -> None:
        """Pass over everything until now: nobody listens, and who comes later reads it."""
        log = self._state.log
        self.seq = log.next_seq - 1
        self._bytes = log.bytes_until(self.seq)
        self.finished = self._state.closed

    def take(self, max_bytes: int) -> list[WatchEvent]:
        """Return the next events in order, with output of about `max_bytes`, and move behind them."""
        log = self._state.log
        events: list[WatchEvent] = self._gap()
        chunks = log.page(self.seq, max_bytes).chunks[:_MAX_CHUNKS]
        newest = log.next_seq - 1
        last = chunks[-1].seq if chunks and log.has_after(chunks[-1].seq) else newest
        events += chunks
        self._bytes = None if self._bytes is None else self._bytes + sum(len(each.data) for each in chunks)
        if self.seq < self._state.exit_seq <= last:
            events.append(Exit(self._state.exit_seq))
        if self._state.closed and last == newest:
            events.append(Close(newest))
            self.finished = True
        self.seq = last
        return sorted(events, key=lambda event: event[0])

    def _gap(self) -> list[WatchEvent]:
        log = self._state.log
        first, last = self.seq + 1, log.oldest_seq - 1
        if first > last:
            return []
        lost = None if self._bytes is None else log.lost_bytes - self._bytes
        self.seq, self._bytes = last, log.lost_bytes
        exit_seq = self._state.exit_seq
        if not first <= exit_seq <= last:
            return [Gap(first, last, lost)]
        # The exit is known for ever; how the lost bytes lie around it is not.
        before, behind = Gap(first, exit_seq - 1, lost), Gap(exit_seq + 1, last, None)
        around = [gap for gap in (before, behind) if gap.first_seq <= gap.last_seq]
        return [*around, Exit(exit_seq)]  # the caller sorts
