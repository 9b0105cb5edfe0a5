"""A server that is a child of this program: one JSON message per line on its stdin and stdout.

The child gets this program's stderr and a process group of its own.  Closing ends it: end of input and
SIGTERM to the group, SIGKILL after 2 s, and it is reaped in any case.  Nothing can connect to a child again,
so there is no resuming.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

import gevent
from gevent.fileobject import FileObjectPosix
from gevent.hub import get_hub

from execserver.client.carriers import children
from execserver.client.carriers.transport import Waiting
from execserver.client.errors import ProtocolViolation, TransportClosed, WaitTimeout
from execserver.eventloop.locks import BoundedSemaphore
from execserver.wire.lines import LineSplitter, LineTooLong

_READ_SIZE: Final = 128 * 1024
_END_S: Final = 1.0  # between the end of a child's output and its own


class StdioTransport(Waiting):
    """One child and the two pipe ends to it; owns all three."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None,
        max_message_bytes: int,
        patience: float = 2.0,
        grace: float = 0.0,
    ) -> None:
        """Start the child; `patience` is the time between SIGTERM and SIGKILL.  Raises `StartFailed`.

        `grace` is how long it may take to end by itself at the end of its input, before SIGTERM.
        """
        self._patience = patience
        self._grace = grace
        self._lines = LineSplitter(max_message_bytes)
        self._messages: deque[bytes] = deque()
        self._sending = BoundedSemaphore(1)
        self._closed = False
        self._program = argv[0] if argv else ""
        self._has_answered = False
        self._pid, to_child, from_child = children.spawn(argv, os.environ if env is None else env)
        self._input = FileObjectPosix(to_child, "wb", 0)
        self._output = FileObjectPosix(from_child, "rb", 0)

    @property
    def pid(self) -> int:
        """The child's process id, which is its group's as well."""
        return self._pid

    def receive(self) -> bytes | None:
        """Return the next line, or None at the end of the child's output (see `Transport`).

        Raises `StartFailed` for an end before the first line.
        """
        while not self._messages:
            try:
                data = self._output.read(_READ_SIZE)
            except (OSError, ValueError) as error:
                raise TransportClosed(f"the pipe from the server broke: {error}") from error
            if not data:
                self._check_start()
                return None
            try:
                self._messages.extend(self._lines.feed(data))
            except LineTooLong as error:
                raise ProtocolViolation(str(error)) from error
            if not self._messages:
                gevent.sleep(0)  # blank lines without pause must not keep timeouts from firing
        self._has_answered = True
        return self._messages.popleft()

    def send(self, message: bytes) -> None:
        """Write one line; blocks while the child does not read.  Raises `TransportClosed`."""
        with self._sending:
            rest = memoryview(message + b"\n")
            try:
                while rest:
                    rest = rest[self._input.write(rest) or 0 :]
            except (OSError, ValueError) as error:
                self._check_start()
                raise TransportClosed(f"the pipe to the server broke: {error}") from error

    def _check_start(self) -> None:
        """Raise `StartFailed` if the child has never answered; it is over with it."""
        if not (self._has_answered or self._closed):
            _ended_within(self._pid, _END_S)
            raise children.failed_start(self._program, self._pid)

    def close(self) -> None:
        """End the child, at the latest with SIGKILL, and reap it."""
        if self._closed:
            return
        self._closed = True
        self._input.close()
        has_ended = self._grace > 0 and _reaped_within(self._pid, self._grace)
        self._output.close()
        if has_ended:
            return
        children.signal_group(self._pid, signal.SIGTERM)
        if not _reaped_within(self._pid, self._patience):
            children.signal_group(self._pid, signal.SIGKILL)
            _reaped_within(self._pid, None)


def _reaped_within(pid: int, seconds: float | None) -> bool:
    """Wait for the end of a child and reap it; return False when time is up."""
    if not _ended_within(pid, seconds):
        return False
    children.reap(pid)
    return True


def _ended_within(pid: int, seconds: float | None) -> bool:
    pidfd = children.watch_end(pid)
    if pidfd is None:
        return True
    try:
        watcher = get_hub().loop.io(pidfd, 1)  # a pidfd becomes readable when its process ends
        try:
            with gevent.Timeout(seconds, WaitTimeout()):
                get_hub().wait(watcher)
        except WaitTimeout:
            return False
        finally:
            watcher.close()
    finally:
        os.close(pidfd)
    return True
