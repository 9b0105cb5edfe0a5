"""The stdio transport: one message per line in each direction (wire contract, section 3).

Both descriptors are made non-blocking, and restored at the end: they may be shared with other processes.  At
the end of input, what was read is handled and what is queued is written before the transport is done.
"""

from __future__ import annotations

import logging
import os
from typing import Protocol

from gevent.event import Event
from gevent.hub import get_hub

from execserver.settings import Settings
from execserver.transports.outbox import Outbox
from execserver.transports.transport import Receiver
from execserver.wire.lines import LineSplitter, LineTooLong

_log = logging.getLogger(__name__)

_READY_READ = 1
_READ_BYTES = 64 * 1024
_NOTHING = b""
_LINE_END = b"\n"


class LineFraming:
    """A line feed ends a message."""

    carries_binary = False

    def short(self, message: bytes) -> bytes:
        """Return a message with its end."""
        return message + _LINE_END

    def whole(self, length: int, *, binary: bool = False) -> tuple[bytes, bytes]:
        """Return the bytes before and after a message."""
        return _NOTHING, _LINE_END

    def piece(self, length: int, *, first: bool, final: bool) -> tuple[bytes, bytes]:
        """Return the bytes before and after a piece of a message."""
        return _NOTHING, _LINE_END if final else _NOTHING


class Lines(Protocol):
    """Cuts the input into lines."""

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes as they were read; return the lines they completed.  May raise LineTooLong."""

    def finish(self) -> list[bytes]:
        """Return the last line if the input ended without a line end."""


class StdioTransport:
    """Messages over two descriptors; a `Transport`.  `done` is set when the conversation is over."""

    malformed_prefix = "failed to parse JSON-RPC message from exec-server stdio"

    def __init__(self, read_fd: int, write_fd: int, settings: Settings, lines: Lines | None = None) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._was_blocking = [(fd, os.get_blocking(fd)) for fd in (read_fd, write_fd)]
        for fd in (read_fd, write_fd):
            os.set_blocking(fd, False)
        self._lines = lines or LineSplitter(settings.max_message_bytes)
        self._receiver: Receiver | None = None
        self._reading = get_hub().loop.io(read_fd, _READY_READ)
        self._paused = False
        self._deaf = False  # after a protocol violation nothing is handled; input is only read to its end
        self.done = Event()
        # If nobody reads the output any more, the conversation ends as with the end of input.
        self.outbox = Outbox(write_fd, LineFraming(), self._end)

    def start(self, receiver: Receiver) -> None:
        """Start reading."""
        self._receiver = receiver
        self._reading.start(self._readable)

    def pause(self) -> None:
        """Stop reading."""
        self._paused = True
        self._reading.stop()

    def resume(self) -> None:
        """Read again."""
        if self._paused and not self.done.is_set():
            self._paused = False
            self._reading.start(self._readable)

    def close(self, code: int, reason: str) -> None:
        """Handle no further message; the program runs until its input ends, as the contract has it."""
        _log.warning("the conversation is over: %s (%d)", reason, code)
        self._deaf = True
        self.outbox.finish()
        self.resume()  # reading may be paused, and the end of the input must be seen

    def restore(self) -> None:
        """Make the descriptors blocking again if they were when they were found."""
        for fd, blocking in self._was_blocking:
            try:
                os.set_blocking(fd, blocking)
            except OSError:
                pass

    def _readable(self) -> None:
        try:
            data = os.read(self._read_fd, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""  # EIO, say: the terminal of this program is gone
        if not data:
            self._deliver(self._lines.finish())
            self._end()
        elif not self._deaf:
            self._split(data)

    def _split(self, data: bytes) -> None:
        try:
            self._deliver(self._lines.feed(data))
        except LineTooLong as error:
            _log.warning("input is not understood any more: %s", error)
            self._deaf = True
            self._end()

    def _deliver(self, lines: list[bytes]) -> None:
        if lines and not self._deaf and self._receiver is not None:
            self._receiver.receive(lines)

    def _end(self) -> None:
        self._reading.stop()
        self.done.set()
        if self._receiver is not None:
            self._receiver.ended()
