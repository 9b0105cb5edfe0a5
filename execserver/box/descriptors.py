"""Standard input and output without blocking the other greenlets.

Whether a descriptor blocks belongs to all processes that share it, the shell among them, so it is left as it
is: a pipe or terminal is opened once more for writing, anything else is written to when it can take some.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from typing import Final

from gevent.event import AsyncResult
from gevent.hub import get_hub

READ_BYTES: Final = 128 * 1024
_TERMINAL_BYTES: Final = 4096  # the kernel keeps no more; room for more would be mapped anew for each key
_READABLE, _WRITABLE = 1, 2
_WITHOUT_BLOCKING: Final = 4096  # PIPE_BUF: a pipe that poll calls writable takes so much at once


class Source:
    """Reads a descriptor, which stays the caller's, as bytes come."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        # For all reads: making one takes a sixth of what this program does for a key.
        self._watcher = None if _is_file(fd) else get_hub().loop.io(fd, _READABLE)
        self._most = _TERMINAL_BYTES if os.isatty(fd) else READ_BYTES

    def read(self, limit: int = READ_BYTES) -> bytes:
        """Return the next bytes, b"" at the end, also of a terminal that is gone.

        Blocks this greenlet only.
        """
        try:
            if self._watcher is not None:
                get_hub().wait(self._watcher)
            return os.read(self._fd, limit)
        except OSError:
            return b""

    def read_at_once(self, take: Callable[[bytes], bool]) -> bool:
        """Have what comes taken in the event loop, where nothing may block; this greenlet waits.

        Returns True at the end, False when `take` has returned False: it has room for no more.  Of a file
        nothing is taken so.
        """
        if self._watcher is None:
            return False
        over: AsyncResult[bool] = AsyncResult()
        self._watcher.start(self._arrived, take, over)
        try:
            return bool(over.get())
        finally:
            self._stop()

    def _arrived(self, take: Callable[[bytes], bool], over: AsyncResult[bool]) -> None:
        try:
            data = os.read(self._fd, self._most)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data and take(data):
            return
        self._stop()
        over.set(not data)

    def _stop(self) -> None:
        if self._watcher is not None:
            self._watcher.stop()

    @property
    def is_file(self) -> bool:
        """True for what is always readable, so that it cannot be waited for."""
        return self._watcher is None

    def close(self) -> None:
        """Watch the descriptor no longer."""
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None


class Sink:
    """Writes all that it is given to a descriptor, in order."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._own = _again(fd)
        mode = os.fstat(fd).st_mode
        self._is_file = stat.S_ISREG(mode)
        self._socket = socket.socket(fileno=os.dup(fd)) if stat.S_ISSOCK(mode) else None

    def write(self, data: bytes) -> None:
        """Write; blocks this greenlet only.  Raises OSError: BrokenPipeError without a reader."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._some(rest) :]
            except BlockingIOError:
                _wait(self._fd if self._own is None else self._own, _WRITABLE)

    def write_at_once(self, data: bytes) -> int:
        """Write what can be written without waiting; return how many bytes that was, 0 also for an error."""
        if self._own is None:
            return 0
        try:
            return os.write(self._own, data)
        except OSError:
            return 0  # it takes nothing now, or no more, which `write` tells

    def _some(self, rest: memoryview) -> int:
        if self._own is not None:
            return os.write(self._own, rest)
        if self._is_file:
            return os.write(self._fd, rest)
        if self._socket is not None:
            return self._socket.send(rest, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        _wait(self._fd, _WRITABLE)
        return os.write(self._fd, rest[:_WITHOUT_BLOCKING])

    def close(self) -> None:
        """Close what was opened; the descriptor itself stays open."""
        if self._own is not None:
            os.close(self._own)
            self._own = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _is_file(fd: int) -> bool:
    try:
        return stat.S_ISREG(os.fstat(fd).st_mode)
    except OSError:
        return True  # it is closed, and a read says so


def _again(fd: int) -> int | None:
    """Return a new description of the same pipe or terminal, or None."""
    mode = os.fstat(fd).st_mode
    if not (stat.S_ISFIFO(mode) or os.isatty(fd)):
        return None
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return None


def _wait(fd: int, events: int) -> None:
    hub = get_hub()
    watcher = hub.loop.io(fd, events)
    try:
        hub.wait(watcher)
    finally:
        watcher.close()
