"""The retained output of one process, and the counter of its events (wire contract, section 9.1 to 9.3).

Each chunk of output, the exit and the close take the next number (`seq`, from 1) when they are recorded.  The
newest chunks whose sizes add up to at most the limit are kept, and `MOST_CHUNKS` at most.  Older chunks are
dropped whole and their bytes counted, so that the server can report to a reader what it missed.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate, islice, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from execserver.handover.records import PackedLog

# More are dropped, whatever their size: a MiB of chunks of a byte takes 200 MiB, and 0.3 s to be told.
MOST_CHUNKS: Final = 131_072

# Has bytes go along beside the records, in one piece; returns where they begin.
Beside = Callable[[Sequence[bytes]], int]


class Chunk(NamedTuple):
    """One piece of output as it was read: its number, its stream (`stdout`, `stderr`, `pty`), its bytes."""

    seq: int
    stream: str
    data: bytes


class TimedChunk(NamedTuple):
    """A chunk, and when it was read from the process, in Unix milliseconds."""

    chunk: Chunk
    at_ms: int


# Of each short line that is pushed, the call of the `__new__` in Python would be a twentieth.
_new_chunk = tuple.__new__


class Page(NamedTuple):
    """The chunks for one `process/read`, and the number at which the next read continues."""

    chunks: list[Chunk]
    next_seq: int


class OutputLog:
    """Retained chunks, oldest first.

    No chunk from the number `oldest_seq` on was dropped; `lost_bytes` counts the bytes dropped so far.
    `on_drop` is given each chunk that is dropped.

    After `restore` the chunks are made at their first use, or by `load`: an upgrade must not wait until all
    processes' output is copied.
    """

    __slots__ = (
        *("_chunks", "_limit", "_packed", "_size", "_times"),
        *("lost_bytes", "next_seq", "oldest_seq", "on_drop"),
    )

    def __init__(self, retained_bytes: int) -> None:
        self._limit = retained_bytes
        self._chunks: deque[Chunk] = deque()
        self._times: deque[int] = deque()
        self._packed: tuple[PackedLog, memoryview] | None = None
        self.on_drop: Callable[[TimedChunk], None] | None = None
        self._size = 0
        self.next_seq = 1
        self.oldest_seq = 1
        self.lost_bytes = 0

    def take_seq(self) -> int:
        """Take the next number, for an event that is not output."""
        # One counter for all events: clients put the notifications in order by it.
        seq = self.next_seq
        self.next_seq = seq + 1
        return seq

    def append(self, stream: str, data: bytes, at_ms: int = 0) -> int:
        """Record one chunk, read at a time in Unix milliseconds, and return its number."""
        seq = self.next_seq
        self.next_seq = seq + 1
        self._chunks.append(_new_chunk(Chunk, (seq, stream, data)))
        self._times.append(at_ms)
        self._size += len(data)
        # Whole chunks, so that a `seq` always stands for the same bytes, in notifications and in reads.  A
        # chunk above the limit would drop itself, too; pumps read at most 64 KiB, against 1 MiB here.
        while self._size > self._limit or len(self._chunks) > MOST_CHUNKS:
            dropped, dropped_at = self._chunks.popleft(), self._times.popleft()
            self._size -= len(dropped.data)
            self.lost_bytes += len(dropped.data)
            self.oldest_seq = dropped.seq + 1
            if self.on_drop is not None:
                self.on_drop(TimedChunk(dropped, dropped_at))
        return seq

    def has_after(self, after_seq: int) -> bool:
        """Return whether a retained chunk has a higher number than `after_seq`."""
        return bool(self._chunks) and self._chunks[-1].seq > after_seq

    def page(self, after_seq: int, max_bytes: int | None) -> Page:
        """Return the chunks with a higher number than `after_seq` (section 8.2).

        The first chunk is included whatever its size, further ones while the total stays within `max_bytes`.
        """
        newer = self._newer(after_seq)
        if max_bytes is None:
            return Page(newer, self.next_seq)
        # Without the first chunk at any size, a reader with a small `max_bytes` would never get on.
        taken: list[Chunk] = []
        total = 0
        for chunk in newer:
            if taken and total + len(chunk.data) > max_bytes:
                break
            taken.append(chunk)
            total += len(chunk.data)
            if total >= max_bytes:
                break
        # With `max_bytes` the next read continues behind the last chunk, even if nothing was left out: so
        # does the reference server.
        return Page(taken, taken[-1].seq + 1 if taken else self.next_seq)

    @property
    def size(self) -> int:
        """The bytes that are retained."""
        return self._size

    def timed_after(self, after_seq: int) -> list[TimedChunk]:
        """Return the retained chunks with a higher number, with their times."""
        newer = self._newer(after_seq)
        times = islice(reversed(self._times), len(newer))
        return [TimedChunk(*pair) for pair in zip(newer, reversed(list(times)), strict=True)]

    def bytes_until(self, seq: int) -> int | None:
        """Return how many bytes came up to this number; None if that is no longer known."""
        if seq == 0:
            return 0
        if seq >= self.next_seq - 1:
            return self.lost_bytes + self._size
        if seq + 1 < self.oldest_seq:
            return None
        return self.lost_bytes + self._size - sum(len(chunk.data) for chunk in self._newer(seq))

    def text_of(self, *streams: str) -> bytes:
        """Return the retained bytes of some streams, joined in the order they came."""
        return b"".join(chunk.data for chunk in self._chunks if chunk.stream in streams)

    def pack(self, beside: Beside) -> PackedLog:
        """Return what `restore` makes of a new log."""
        from execserver.handover.records import PackedLog  # late, as all of that package: few hand over

        # By columns, and the data not copied into them: of 100 processes with 300 KB each packing and
        # restoring took 90 ms more, in which nobody is answered.
        data = [chunk.data for chunk in self._chunks]
        streams = [chunk.stream for chunk in self._chunks]
        places = {stream: place for place, stream in enumerate(dict.fromkeys(streams))}
        return PackedLog(
            at=beside(data),
            seqs=_column([chunk.seq for chunk in self._chunks]),
            sizes=_column(list(map(len, data))),
            times=_column(self._times),
            streams=bytes([places[stream] for stream in streams]),
            names=list(places),
            next_seq=self.next_seq,
            oldest_seq=self.oldest_seq,
            lost_bytes=self.lost_bytes,
        )

    def restore(self, packed: PackedLog, beside: memoryview) -> None:
        """Become what was packed; called on a new log.  `beside` is what went along beside the records."""
        self._size = sum(_numbers(packed.sizes))
        self.next_seq, self.oldest_seq = packed.next_seq, packed.oldest_seq
        self.lost_bytes = packed.lost_bytes
        if packed.seqs:
            self._packed = packed, beside[packed.at : packed.at + self._size]
            del self._chunks, self._times  # until `__getattr__` is asked for them

    def load(self) -> None:
        """Make the chunks of `restore`, if that has not been done."""
        if self._packed is None:
            return
        (packed, data), self._packed = self._packed, None
        ends = accumulate(_numbers(packed.sizes), initial=0)
        pieces = [bytes(data[begin:end]) for begin, end in pairwise(ends)]
        streams = [packed.names[each] for each in packed.streams]
        self._chunks = deque(map(Chunk._make, zip(_numbers(packed.seqs), streams, pieces, strict=True)))
        self._times = deque(_numbers(packed.times))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            # Called for an empty slot only, so that logs which were not handed over do not pay for it.
            if name not in ("_chunks", "_times"):
                raise AttributeError(name)
            self.load()
            return object.__getattribute__(self, name)

    def _newer(self, after_seq: int) -> list[Chunk]:
        newer: list[Chunk] = []
        # From the newest backwards: a client that follows the output has missed few chunks or none.
        for chunk in reversed(self._chunks):
            if chunk.seq <= after_seq:
                break
            newer.append(chunk)
        newer.reverse()
        return newer


def _column(numbers: Sequence[int] | deque[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def _numbers(column: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(column) // 8}Q", column)
