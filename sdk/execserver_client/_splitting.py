"""Output of one process that was taken by a reader of the other stream, until its own reader comes."""

from __future__ import annotations

from collections import deque
from typing import Final

from execserver.client.errors import OutputGap, kept
from execserver.client.rules.event_log import Output

_MOST: Final = 8 * 1024 * 1024  # bytes of one stream; beyond, the oldest become a gap
_OVERHEAD: Final = 200  # bytes that a piece costs besides its content
_STREAMS: Final = ("stdout", "stderr")


class Aside:
    """What waits for the readers of the single streams, in order."""

    __slots__ = ("_held", "_process_id", "_waiting")

    def __init__(self, process_id: str) -> None:
        self._process_id = process_id
        self._waiting: dict[str, deque[Output | OutputGap]] = {name: deque() for name in _STREAMS}
        self._held = dict.fromkeys(_STREAMS, 0)

    @staticmethod
    def stream_of(output: Output) -> str:
        """Return under which name output is read: that of a terminal is stdout."""
        return "stderr" if output.stream == "stderr" else "stdout"

    def has(self, name: str | None) -> bool:
        """Return whether something waits for the reader of a stream, None: of any."""
        return bool(self._waiting[name]) if name is not None else any(self._waiting.values())

    def put(self, output: Output) -> None:
        """Keep output for the reader of its stream."""
        self._put(self.stream_of(output), output)

    def put_gap(self, gap: OutputGap, name: str | None) -> None:
        """Note a gap that the reader of `name` was told: the others may lack something there, too."""
        for other in _STREAMS:
            if name is not None and other != name:
                self._put(other, kept(gap))

    def take(self, name: str | None) -> bytes:
        """Return the oldest piece of a stream, None: of any.  Raises `OutputGap` where some is lost."""
        if name is None:
            name = next(each for each in _STREAMS if self._waiting[each])
        item = self._waiting[name].popleft()
        self._held[name] -= _size(item)
        if isinstance(item, OutputGap):
            raise kept(item)  # a copy: raised itself, it and this frame would hold each other
        return item.data

    def _put(self, name: str, item: Output | OutputGap) -> None:
        waiting = self._waiting[name]
        waiting.append(item)
        self._held[name] += _size(item)
        while self._held[name] > _MOST and len(waiting) > 1:
            self._join_oldest(name)

    def _join_oldest(self, name: str) -> None:
        """Replace the two oldest items by one gap that tells both."""
        waiting = self._waiting[name]
        oldest = waiting.popleft(), waiting.popleft()
        self._held[name] -= sum(map(_size, oldest))
        first, second = map(self._as_gap, oldest)
        known = None not in (first.lost_bytes, second.lost_bytes)
        lost = (first.lost_bytes or 0) + (second.lost_bytes or 0) if known else None
        gap = OutputGap(self._process_id, first.first_seq, second.last_seq, lost)
        waiting.appendleft(gap)
        self._held[name] += _size(gap)

    def _as_gap(self, item: Output | OutputGap) -> OutputGap:
        if isinstance(item, OutputGap):
            return item
        return OutputGap(self._process_id, item.seq, item.seq, len(item.data))


def _size(item: Output | OutputGap) -> int:
    return _OVERHEAD + (len(item.data) if isinstance(item, Output) else 0)
