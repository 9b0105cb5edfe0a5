"""Frames of several senders for one receiver; the senders take turns.

A small frame waits for at most one frame of each other sender, however much those have queued.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable


class FairQueue:
    """One queue per sender, emptied in turns.

    It has no limit of its own: its owner stops reading a sender whose `size_of` is too large.
    """

    __slots__ = ("_queues", "_sizes", "_turns", "size")

    def __init__(self) -> None:
        self._queues: dict[Hashable, deque[bytes]] = {}
        self._sizes: dict[Hashable, int] = {}
        self._turns: deque[Hashable] = deque()  # each sender with a frame once
        self.size = 0  # bytes

    def __bool__(self) -> bool:
        return bool(self._turns)

    def push(self, sender: Hashable, frame: bytes) -> None:
        """Add a frame after the sender's others."""
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
        """Remove and return the next frame.  Raises IndexError if there is none."""
        sender = self._turns.popleft()
        queue = self._queues[sender]
        frame = queue.popleft()
        self.size -= len(frame)
        # One frame a turn, of whatever size: frames are bounded (256 KiB), and so is the wait for the others.
        if queue:
            self._turns.append(sender)
            self._sizes[sender] -= len(frame)
        else:
            # Stream ids are senders, too, and come and go: nothing may stay of one that has nothing queued.
            del self._queues[sender], self._sizes[sender]
        return frame

    def size_of(self, sender: Hashable) -> int:
        """Return the bytes a sender has waiting."""
        return self._sizes.get(sender, 0)

    def pack(self) -> list[tuple[Hashable, list[bytes]]]:
        """Return each sender with its frames, in the order of their turns, to be pushed again."""
        return [(sender, list(self._queues[sender])) for sender in self._turns]

    def clear(self) -> None:
        """Drop everything."""
        self._queues.clear()
        self._sizes.clear()
        self._turns.clear()
        self.size = 0
