"""Where the spooled output of one process lies in its file, and what of it is still there.

Chunks that the log in memory has dropped are packed into segments, and a segment is written as a whole into a
file of limited size, around and around: a new one overwrites the oldest.  No I/O: the owner writes what
`place` returns, and reads where `segment_after` says.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from execserver.core.output_log import Chunk, TimedChunk

SEGMENT_BYTES: Final = 128 * 1024  # of chunks in a segment, before it is written
SEGMENT_CHUNKS: Final = 8192  # in one: those of a byte take 300 bytes each before they are written
_HEAD = struct.Struct("<QQBI")  # seq, time in ms, stream, length
_STREAMS: Final = ("stdout", "stderr", "pty")


class Segment(NamedTuple):
    """Chunks `first_seq` to `last_seq`, with so many bytes of output, at a place of the file."""

    first_seq: int
    last_seq: int
    last_at_ms: int
    output_bytes: int
    offset: int
    length: int


class SpoolIndex:
    """The segments in one file of at most `limit` bytes, oldest first; `held_bytes` counts their output."""

    __slots__ = ("_limit", "_place", "_segments", "held_bytes")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._place = 0
        self._segments: deque[Segment] = deque()
        self.held_bytes = 0

    def pack(self) -> tuple[int, list[Segment]]:
        """Return the place of the next segment, and the segments."""
        return self._place, list(self._segments)

    def restore(self, place: int, segments: Iterable[Segment]) -> None:
        """Become what was packed; called on a new index."""
        for segment in segments:
            self.add(segment)
        self._place = place

    @property
    def oldest_seq(self) -> int | None:
        """The first chunk in the file; None in an empty one."""
        return self._segments[0].first_seq if self._segments else None

    def place(self, chunks: list[TimedChunk]) -> tuple[Segment, bytes]:
        """Return where some chunks go, and their bytes; forget the segments that these overwrite.

        Call `add` with the segment once it is written.
        """
        packed = b"".join([_packed(*each) for each in chunks])
        offset = self._place if self._place + len(packed) <= self._limit else 0
        size = sum(len(each.chunk.data) for each in chunks)
        first, last = chunks[0], chunks[-1]
        self._make_room(offset, offset + len(packed))
        return Segment(first.chunk.seq, last.chunk.seq, last.at_ms, size, offset, len(packed)), packed

    def add(self, segment: Segment) -> None:
        """Note that a segment was written."""
        self._segments.append(segment)
        self.held_bytes += segment.output_bytes
        self._place = segment.offset + segment.length

    def segment_after(self, seq: int) -> Segment | None:
        """Return the oldest segment with a chunk behind a number."""
        return next((segment for segment in self._segments if segment.last_seq > seq), None)

    def __contains__(self, segment: Segment) -> bool:
        return segment in self._segments

    def seq_before_last(self, wanted_bytes: int) -> int:
        """Return the number behind which the last segments with so many bytes of output begin."""
        for segment in reversed(self._segments):
            wanted_bytes -= segment.output_bytes
            if wanted_bytes <= 0:
                return segment.first_seq - 1
        return 0

    def seq_before_time(self, since_ms: int) -> int:
        """Return a number behind which every chunk since a time comes."""
        for segment in self._segments:
            if segment.last_at_ms >= since_ms:
                return segment.first_seq - 1
        return self._segments[-1].last_seq if self._segments else 0

    def _make_room(self, start: int, end: int) -> None:
        # Oldest first: the file is written in circles, so what is overwritten is always at the front.  What
        # lies behind `start` when writing begins anew at 0 is older than all at the front.
        while self._segments:
            oldest = self._segments[0]
            overlaps = oldest.offset < end and start < oldest.offset + oldest.length
            skipped = start == 0 and oldest.offset >= self._place and self._place > 0
            if not overlaps and not skipped:
                return
            self.held_bytes -= self._segments.popleft().output_bytes


def _packed(chunk: Chunk, at_ms: int) -> bytes:
    return _HEAD.pack(chunk.seq, at_ms, _STREAMS.index(chunk.stream), len(chunk.data)) + chunk.data


def unpack(packed: bytes) -> list[TimedChunk]:
    """Return the chunks of a segment."""
    chunks, place = [], 0
    while place < len(packed):
        seq, at_ms, stream, length = _HEAD.unpack_from(packed, place)
        place += _HEAD.size
        chunks.append(TimedChunk(Chunk(seq, _STREAMS[stream], packed[place : place + length]), at_ms))
        place += length
    return chunks
