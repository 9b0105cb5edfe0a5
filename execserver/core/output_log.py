"""The retained output of one process, and the one counter of its events (wire contract, section 9.1 to 9.3).

Every chunk of output, the exit and the close take the next number (`seq`, from 1) when they are recorded.
The newest chunks whose sizes sum to at most the bound are kept; older ones are dropped whole, and what was
dropped is counted, so that a reader who missed something can be told.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


class Chunk(NamedTuple):
    """One piece of output as it was read: its number, `stdout`, `stderr` or `pty`, and its bytes."""

    seq: int
    stream: str
    data: bytes


class Page(NamedTuple):
    """What one `process/read` gets, and from where to read on."""

    chunks: list[Chunk]
    next_seq: int


class OutputLog:
    """Retained chunks, oldest first.

    `oldest_seq` is the first number from which on nothing was dropped; `lost_bytes` counts the bytes
    dropped so far.
    """

    __slots__ = ("_chunks", "_limit", "_size", "lost_bytes", "next_seq", "oldest_seq")

    def __init__(self, retained_bytes: int) -> None:
        self._limit = retained_bytes
        self._chunks: deque[Chunk] = deque()
        self._size = 0
        self.next_seq = 1
        self.oldest_seq = 1
        self.lost_bytes = 0

    def take_seq(self) -> int:
        """Number an event that is not output."""
        seq = self.next_seq
        self.next_seq = seq + 1
        return seq

    def append(self, stream: str, data: bytes) -> int:
        """Record one chunk and return its number."""
        seq = self.take_seq()
        self._chunks.append(Chunk(seq, stream, data))
        self._size += len(data)
        while self._size > self._limit:
            dropped = self._chunks.popleft()
            self._size -= len(dropped.data)
            self.lost_bytes += len(dropped.data)
            self.oldest_seq = dropped.seq + 1
        return seq

    def has_after(self, after_seq: int) -> bool:
        """Tell whether a retained chunk is newer than `after_seq`."""
        return bool(self._chunks) and self._chunks[-1].seq > after_seq

    def page(self, after_seq: int, max_bytes: int | None) -> Page:
        """Return the chunks after a number (section 8.2).

        The first chunk comes whatever its size; further ones only while the total stays within `max_bytes`.
        """
        newer = self._newer(after_seq)
        if max_bytes is None:
            return Page(newer, self.next_seq)
        taken: list[Chunk] = []
        total = 0
        for chunk in newer:
            if taken and total + len(chunk.data) > max_bytes:
                break
            taken.append(chunk)
            total += len(chunk.data)
            if total >= max_bytes:
                break
        return Page(taken, taken[-1].seq + 1 if taken else self.next_seq)

    def text_of(self, *streams: str) -> bytes:
        """Return the retained bytes of some streams, joined in order."""
        return b"".join(chunk.data for chunk in self._chunks if chunk.stream in streams)

    def _newer(self, after_seq: int) -> list[Chunk]:
        newer: list[Chunk] = []
        for chunk in reversed(self._chunks):
            if chunk.seq <= after_seq:
                break
            newer.append(chunk)
        newer.reverse()
        return newer
