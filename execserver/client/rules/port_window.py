"""The bytes for one forwarded connection, several requests under way: `request_window` with its rules."""

from __future__ import annotations

from typing import Final

from execserver.client.rules.port_log import PortLog
from execserver.client.rules.request_window import Line, RequestWindow, Steps
from execserver.protocol.own_methods import PORT_DATA

_MOST_BYTES: Final = 1024 * 1024  # whatever the server allows


class PortWindow:
    """What one caller has under way: as much as the server's window takes, and at most 1 MiB."""

    def __init__(self, line: Line, log: PortLog) -> None:
        self._log = log
        most = min(log.window_bytes, _MOST_BYTES)
        self._window = RequestWindow(line, PORT_DATA, lambda answer: log.settle(), most)
        self.finish = self._window.finish

    def begin(self) -> Steps:
        """Send what an earlier caller gave up on; comes first."""
        for params in self._log.given_up():
            yield from self._window.push(params)

    def push(self, data: bytes) -> Steps:
        """Send bytes as soon as the window has room.  Raises what ended the stream."""
        for params in self._log.pieces(data):
            yield from self._window.push(params)
