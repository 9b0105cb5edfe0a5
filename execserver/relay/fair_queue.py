"""Frames of several senders on their way to one receiver, each sender in turn.

A small frame waits behind at most one frame of every other sender, however much those have queued.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable


class FairQueue:
    """One queue a sender, emptied in turn; bounded by whoever fills it, by `size_of`."""

    __slots__ = ("_queues", "_sizes", "_turns", "size")

    def __init__(self) -> None:
        self._queues: dict[Hashable, deque[bytes]] = {}
        self._sizes: dict[Hashable, int] = {}
        self._turns: deque[Hashable] = deque()
        self.size = 0  # bytes

    def __bool__(self) -> bool:
        return bool(self._turns)

    def push(self, sender: Hashable, frame: bytes) -> None:
        """Add a frame behind the sender's others."""
        queue = self._queues.get(sender)
        if queue is None:
            self._queues[sender] = deque((frame,))
            self._sizes[sender] = len(frame)
            self._turns.append(sender)
        else:
            queue.append(frame)
            self._sizes[sender] += len(frame)
        self.size += len(frame)

    def pop(self) -> bytes:
        """Take the next frame; raises IndexError when there is none."""
        sender = self._turns.popleft()
        queue = self._queues[sender]
        frame = queue.popleft()
        self.size -= len(frame)
        if queue:
            self._turns.append(sender)
            self._sizes[sender] -= len(frame)
        else:
            del self._queues[sender], self._sizes[sender]
        return frame

    def size_of(self, sender: Hashable) -> int:
        """Return the bytes a sender has waiting."""
        return self._sizes.get(sender, 0)

    def clear(self) -> None:
        """Drop everything."""
        self._queues.clear()
        self._sizes.clear()
        self._turns.clear()
        self.size = 0
