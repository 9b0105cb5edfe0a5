"""Reads one output of one process until its end: a blocking-style loop in a greenlet of its own.

The pump owns its descriptor and closes it, once, when it ends.  It takes what is there, up to `CHUNK_BYTES`
a chunk, and joins only what can be read at once; no timer delays anything.  Before each read it waits for
room at the client: a client that does not read leaves the data in the pipe, and the child blocks there.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from gevent import Greenlet, sleep
from gevent.hub import get_hub

CHUNK_BYTES = 64 * 1024
_YIELD_BYTES = 4096  # after a larger chunk other greenlets get a turn
_YIELD_READS = 16  # and after as many small ones: a child that never pauses would keep the turn otherwise
_TTY_JOIN_BYTES = 2000  # a terminal gives at most 4 KiB a read; a fuller read means that more is waiting
_REOPENED_S = 0.05
_READY_READ = 1


class Pump:
    """One output: `publish(stream, data)` takes each chunk, `wait_for_room` holds it back.

    `may_end` tells whether the process is gone; a terminal is kept open as long as it is not.
    """

    def __init__(
        self,
        stream: str,
        fd: int,
        publish: Callable[[str, bytes], None],
        wait_for_room: Callable[[], None],
        on_end: Callable[[], None],
        may_end: Callable[[], bool],
    ) -> None:
        self.stream = stream
        self.ended = False
        self._fd = fd
        self._publish = publish
        self._wait_for_room = wait_for_room
        self._on_end = on_end
        self._may_end = may_end
        self._is_terminal = stream == "pty"
        self._watcher = get_hub().loop.io(fd, _READY_READ)
        self._greenlet: Greenlet[[], None] | None = None

    def start(self) -> None:
        """Begin to read."""
        self._greenlet = Greenlet.spawn(self._run)

    def drain(self, limit: int) -> None:
        """Read what is there now, at most about `limit` bytes, without waiting."""
        while not self.ended and limit > 0:
            data = self._read()
            if data is None:
                return
            if not data:
                self.stop()
                return
            limit -= len(data)
            self._publish(self.stream, data)

    def stop(self) -> None:
        """End at once and close the descriptor.  What is unread is lost.

        `on_end` is called just before the close, while the number still means this output.
        """
        if self.ended:
            return
        self.ended = True
        self._watcher.stop()  # before the close: the loop aborts on a watcher of a closed descriptor
        greenlet, self._greenlet = self._greenlet, None  # which keeps the traceback of its end, and so us
        if greenlet is not None:
            greenlet.kill(block=False)
        self._on_end()
        os.close(self._fd)

    def _run(self) -> None:
        hub = get_hub()
        reads = 0
        while True:
            self._wait_for_room()
            if self.ended:
                return
            data = self._read()
            if data is None:
                hub.wait(self._watcher)
            elif data:
                self._publish(self.stream, data)
                reads += 1
                if len(data) > _YIELD_BYTES or reads == _YIELD_READS:
                    reads = 0
                    sleep(0)
            elif self._is_terminal and not self._may_end():
                # Nobody has the terminal open, but its process lives: closing our side would hang it up, and
                # it may open the terminal again.  The loop cannot wait for that, so look now and then.
                sleep(_REOPENED_S)
            else:
                self._greenlet = None
                self.stop()
                return

    def _read(self) -> bytes | None:
        """Return a chunk, nothing at the end, or None when there is nothing to read now."""
        try:
            data = os.read(self._fd, CHUNK_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""  # a terminal whose last user has gone gives EIO
        if self._is_terminal and len(data) >= _TTY_JOIN_BYTES:
            return self._joined(data)
        return data

    def _joined(self, data: bytes) -> bytes:
        parts, size = [data], len(data)
        while size < CHUNK_BYTES:
            try:
                more = os.read(self._fd, CHUNK_BYTES - size)
            except OSError:
                break  # nothing now, or the end: the next read will say so again
            if not more:
                break
            parts.append(more)
            size += len(more)
        return b"".join(parts)
