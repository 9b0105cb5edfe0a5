"""Input of a process with several writes under way: `request_window` with the rules of a process."""

from __future__ import annotations

from typing import Final

from execserver.client.rules.process_state import ProcessState
from execserver.client.rules.request_window import Line, RequestWindow, Steps
from execserver.protocol.process_methods import PROCESS_WRITE

WINDOW_BYTES: Final = 1024 * 1024


class WriteWindow:
    """The writes of one caller that are under way: at most `WINDOW_BYTES`, or a single larger one."""

    def __init__(self, line: Line, known: ProcessState) -> None:
        self._known = known
        self._window = RequestWindow(
            line, PROCESS_WRITE, lambda answer: known.check_written(answer.status), WINDOW_BYTES
        )
        self.finish = self._window.finish

    def push(self, piece: bytes | int) -> Steps:
        """Send a piece as soon as the window has room.  Raises as a write does that came before it."""
        if isinstance(piece, int):  # of somebody who gave one piece, and no pieces
            raise TypeError("write_all takes several pieces of bytes; write takes one")
        for params in self._known.writing(piece):
            yield from self._window.push(params)
