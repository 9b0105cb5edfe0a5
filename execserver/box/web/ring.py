"""The latest output of one terminal, read by several readers at their own pace.  No I/O.

A reader that is behind by more than what is kept goes on at the oldest kept byte, and is told how many it has
missed.  Bytes that were lost before they came here are a gap for all.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from execserver.wire import pieces

KEPT_BYTES: Final = 1024 * 1024


class Piece(NamedTuple):
    """What a reader gets: the bytes it has missed (None: an unknown number), then output."""

    lost: int | None
    data: bytes


class Ring:
    """Keeps the last KEPT_BYTES, little pieces as few."""

    def __init__(self, kept: int = KEPT_BYTES) -> None:
        self._kept = kept
        self._pieces: deque[bytes] = deque()
        self.begin = 0  # the place of the first byte that is kept, counted from the very first
        self.end = 0
        self._gaps: deque[tuple[int, int | None]] = deque(maxlen=64)  # place, and how many are lost there

    def add(self, data: bytes) -> None:
        """Add output; the oldest pieces go for it."""
        pieces.append(self._pieces, data)
        self.end += len(data)
        while self.end - self.begin > self._kept and len(self._pieces) > 1:
            self.begin += len(self._pieces.popleft())
        while self._gaps and self._gaps[0][0] < self.begin:
            self._gaps.popleft()

    def add_gap(self, lost: int | None) -> None:
        """Note that output is lost here."""
        if self._gaps and self._gaps[-1][0] == self.end:
            before = self._gaps.pop()[1]
            lost = None if before is None or lost is None else before + lost
        self._gaps.append((self.end, lost))

    def gap_from(self, place: int) -> tuple[int, int | None] | None:
        """Return the first gap at a place or behind it, and how many bytes are lost there."""
        return next((each for each in self._gaps if each[0] >= place), None)

    def part(self, place: int, count: int) -> bytes:
        """Return so many kept bytes from a place on."""
        at, found = self.begin, bytearray()
        for piece in self._pieces:
            if at + len(piece) > place and len(found) < count:
                first = max(0, place - at)
                found += piece[first : first + count - len(found)]
            at += len(piece)
            if len(found) >= count:
                break
        return bytes(found)


class Cursor:
    """Where one reader is."""

    def __init__(self, ring: Ring) -> None:
        """Begin at the oldest byte that is kept."""
        self._ring = ring
        self.place = ring.begin
        self._told = -1  # the place of the last gap that was told

    @property
    def behind(self) -> int:
        """How many bytes there are to read, those that are gone included."""
        return self._ring.end - self.place

    @property
    def has_news(self) -> bool:
        """Whether `take` returns something."""
        return self.behind > 0 or self._next_gap() is not None

    def take(self, limit: int) -> Piece:
        """Return the next bytes, at most `limit`, and what was lost before them."""
        lost: int | None = 0
        if self.place < self._ring.begin:
            lost, self.place = self._ring.begin - self.place, self._ring.begin
        gap = self._next_gap()
        if gap is not None and gap[0] == self.place:
            self._told = gap[0]
            lost = None if lost is None or gap[1] is None else lost + gap[1]
            gap = self._next_gap()
        end = self._ring.end if gap is None else gap[0]
        data = self._ring.part(self.place, min(limit, end - self.place))
        self.place += len(data)
        return Piece(lost, data)

    def _next_gap(self) -> tuple[int, int | None] | None:
        return self._ring.gap_from(max(self.place, self._told + 1))
