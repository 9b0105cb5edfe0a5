"""What waits to be written to one websocket: messages in turns, and before them what is in line already."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from execserver.relay.fair_queue import FairQueue
from execserver.relay.ws_frames import binary_header

_LINE_BYTES = 64 * 1024  # taken out of turns ahead of the write; what is behind can still be overtaken
_SMALL_BYTES = 4096  # joined with its header rather than written as two


class SendQueue:
    """Messages and control frames; the writer takes from `line`, and says with `took` how much."""

    __slots__ = ("_line_bytes", "_messages", "control_bytes", "line")

    def __init__(self) -> None:
        self._messages = FairQueue()
        self._line_bytes = 0
        self.line: deque[bytes | memoryview] = deque()  # in the order of the wire
        self.control_bytes = 0  # put into the line since it was last empty

    def push(self, turn: Hashable, message: bytes) -> None:
        """Add a message behind the others of its turn."""
        self._messages.push(turn, message)

    def put(self, frame: bytes) -> None:
        """Add a control frame ahead of the messages that wait for their turn."""
        self.control_bytes += len(frame)
        self._line_bytes += len(frame)
        self.line.append(frame)

    def waiting(self, turn: Hashable | None) -> int:
        """Return the bytes that wait for a turn, or for all (None), those in line not counted."""
        return self._messages.size if turn is None else self._messages.size_of(turn)

    def fill(self, *, everything: bool = False) -> bool:
        """Put messages into the line; tell whether there is something in it."""
        while self._messages and (everything or self._line_bytes < _LINE_BYTES):
            message = self._messages.pop()
            header = binary_header(len(message))
            self.line.extend((header + message,) if len(message) < _SMALL_BYTES else (header, message))
            self._line_bytes += len(header) + len(message)
        if not self.line:
            self.control_bytes = 0
        return bool(self.line)

    def took(self, count: int) -> None:
        """Drop what was written from the front of the line."""
        self._line_bytes -= count
        line = self.line
        while count:
            head = line[0]
            if len(head) > count:
                line[0] = memoryview(head)[count:]
                return
            count -= len(head)
            line.popleft()

    def clear(self) -> None:
        """Drop everything."""
        self._messages.clear()
        self.line.clear()
        self._line_bytes = 0
