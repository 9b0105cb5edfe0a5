"""A test peer that talks newline-delimited JSON to a child's stdin and stdout.

Owns the two pipe ends it is given; `close_input` ends the server's input, `close` lets go of both.
"""

from __future__ import annotations

import os
import select
import time

from tests.support.feed import Feed, whole
from tests.support.peer import WAIT, Peer, PeerTimeout, ProtocolFault

READ_SIZE = 262_144


class StdioPeer(Peer):
    """One server on the other end of two pipes."""

    def __init__(self, input_fd: int, output_fd: int, feed: Feed = whole) -> None:
        super().__init__()
        self.input_fd: int | None = input_fd
        self.output_fd: int | None = output_fd
        self.feed = feed
        self._buffer = bytearray()
        self._lines: list[bytes] = []
        self._ended = False

    def send_raw(self, data: bytes) -> None:
        """Write bytes as they are, cut by this peer's feed."""
        assert self.input_fd is not None, "the input was closed"
        for piece in self.feed(data):
            view = memoryview(piece)
            while view:
                view = view[os.write(self.input_fd, view) :]

    def send_text(self, text: str | bytes) -> None:
        """Send one message as one line."""
        self.send_raw((text.encode() if isinstance(text, str) else text) + b"\n")

    def receive_text(self, timeout: float = WAIT) -> bytes | None:
        """Return the next line without its newline, None at the end of the output. Raises `PeerTimeout`."""
        deadline = time.monotonic() + timeout
        while not self._lines:
            if self._ended or not self._fill(deadline):
                return None
        return self._lines.pop(0)

    def _fill(self, deadline: float) -> bool:
        assert self.output_fd is not None, "the peer was closed"
        if not select.select([self.output_fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise PeerTimeout("no line in time")
        data = os.read(self.output_fd, READ_SIZE)
        if not data:
            self._ended = True
            if self._buffer:
                raise ProtocolFault(f"the output ended in the middle of a line: {bytes(self._buffer)!r}")
            return False
        self._buffer += data
        if b"\n" in data:
            *lines, rest = bytes(self._buffer).split(b"\n")
            self._lines += lines
            self._buffer[:] = rest
        return True

    def close_input(self) -> None:
        """End the server's standard input."""
        if self.input_fd is not None:
            os.close(self.input_fd)
            self.input_fd = None

    def close(self) -> None:
        """Close both pipe ends."""
        self.close_input()
        if self.output_fd is not None:
            os.close(self.output_fd)
            self.output_fd = None
