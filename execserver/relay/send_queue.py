"""What waits to be written to one WebSocket: messages in turns, and before them what is in line already."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from execserver.relay.fair_queue import FairQueue
from execserver.relay.ws_frames import binary_header
from execserver.wire.unsent import drop_sent

if TYPE_CHECKING:
    from execserver.handover.relay_records import PackedQueue, Turn

_LINE_BYTES = 64 * 1024  # taken out of the turns before the write; nothing can overtake these any more
_SMALL_BYTES = 4096  # joined with its header rather than written as two


class SendQueue:
    """Messages and control frames; the writer writes from `line`, and reports with `took` how much."""

    __slots__ = ("_line_bytes", "_messages", "control_bytes", "line")

    def __init__(self) -> None:
        self._messages = FairQueue()
        self._line_bytes = 0
        self.line: deque[bytes | memoryview] = deque()  # buffers in the order they are written
        self.control_bytes = 0  # of control frames put into the line since it was last empty

    def push(self, turn: Hashable, message: bytes) -> None:
        """Add a message after the others of its turn."""
        if self.line or self._messages or len(message) >= _SMALL_BYTES:
            self._messages.push(turn, message)
        else:
            self._put_in_line(message)  # where nothing waits it is the first, whosever turn it is

    def put(self, frame: bytes) -> None:
        """Add a control frame ahead of the messages that wait for their turn."""
        self.control_bytes += len(frame)
        self._line_bytes += len(frame)
        self.line.append(frame)

    def waiting(self, turn: Hashable | None) -> int:
        """Return the bytes that wait for one turn, or for all (None), without those in line."""
        return self._messages.size if turn is None else self._messages.size_of(turn)

    def fill(self, *, everything: bool = False) -> bool:
        """Move messages into the line, up to 64 KiB; return whether it holds anything."""
        while self._messages and (everything or self._line_bytes < _LINE_BYTES):
            self._put_in_line(self._messages.pop())
        if not self.line:
            self.control_bytes = 0
        return bool(self.line)

    def _put_in_line(self, message: bytes) -> None:
        header = binary_header(len(message))
        if len(message) < _SMALL_BYTES:
            self.line.append(header + message)
        else:
            self.line.extend((header, message))
        self._line_bytes += len(header) + len(message)

    def took(self, count: int) -> None:
        """Remove the bytes that were written from the front of the line."""
        self._line_bytes -= count
        if self._line_bytes:
            drop_sent(self.line, count)
        else:
            self.line.clear()

    def pack(self, named: Callable[[Hashable], Turn]) -> PackedQueue:
        """Return what `restore` takes; `named` says what a turn is called on the way."""
        from execserver.handover.relay_records import PackedQueue

        turns = [(named(turn), messages) for turn, messages in self._messages.pack()]
        return PackedQueue(list(map(bytes, self.line)), self.control_bytes, turns)

    def restore(self, packed: PackedQueue, turn_of: Callable[[Turn], Hashable]) -> None:
        """Become what was packed; called before anything is added."""
        self.line.extend(packed.line)
        self._line_bytes = sum(map(len, packed.line))
        self.control_bytes = packed.control_bytes
        for turn, messages in packed.turns:
            for message in messages:
                self._messages.push(turn_of(turn), message)

    def clear(self) -> None:
        """Drop everything."""
        self._messages.clear()
        self.line.clear()
        self._line_bytes = 0
