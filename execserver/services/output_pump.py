"""The output pump: reads one output of one process until its end, in a greenlet of its own.

The pump owns its descriptor and closes it once, when it ends.  It reads what is there, up to `CHUNK_BYTES`
for each chunk, and joins only what it can read at once; no timer delays output.  Before each read it waits
for room at the client.  If the client does not read, the data stays in the pipe and the command blocks in its
writes.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from gevent import Greenlet, sleep
from gevent.hub import get_hub

CHUNK_BYTES = 64 * 1024  # all that a pipe holds; the reference server sends 8 KiB a message
_YIELD_BYTES = 4096  # a larger chunk may have more behind it: other greenlets run, then it is read on
_TTY_JOIN_BYTES = 2000  # a terminal returns at most 4 KiB a read; a read this full means that more is waiting
_REOPENED_S = 0.05
_READY_READ = 1


class OutputPump:
    """One output: `publish(stream, data)` takes each chunk, `wait_for_room` blocks while there is no room.

    `may_end` tells whether the process has exited; until then the pump keeps a terminal open.
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
        self._watcher = get_hub().loop.io(fd, _READY_READ)  # made once; `hub.wait` starts and stops it
        self._greenlet: Greenlet[[], None] | None = None

    def start(self) -> None:
        """Start reading."""
        self._greenlet = Greenlet.spawn(self._run)

    def drain(self, limit: int) -> None:
        """Read what is there now, at most about `limit` bytes, without waiting.

        Another greenlet calls this while the pump's own one waits; the output may end in here.
        """
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
        """End at once and close the descriptor; unread output is lost.

        `on_end` is called just before the close, while the descriptor number still names this output.
        """
        if self.ended:
            return
        self.ended = True
        self._watcher.stop()  # before the close: the loop aborts on a watcher of a closed descriptor
        # A killed greenlet keeps the traceback of its end, whose frames hold this pump: a reference cycle.
        greenlet, self._greenlet = self._greenlet, None
        if greenlet is not None:
            greenlet.kill(block=False)
        self._on_end()
        os.close(self._fd)

    def _run(self) -> None:
        hub = get_hub()
        while True:
            self._wait_for_room()
            if self.ended:  # stopped meanwhile: the closed descriptor's number may name another file by now
                return
            data = self._read()
            if data is None:
                hub.wait(self._watcher)
            elif data:
                self._publish(self.stream, data)
                if len(data) > _YIELD_BYTES:
                    sleep(0)
                else:
                    # A second read would mostly find nothing, and the client would have to wait for it.
                    hub.wait(self._watcher)
            elif self._is_terminal and not self._may_end():
                # No process has the terminal open, but the command lives and may open it again.  Closing our
                # side would send it SIGHUP.  The event loop cannot wait for an open, so try now and then.
                sleep(_REOPENED_S)
            else:
                self._greenlet = None  # `stop` must not kill the greenlet it runs in
                self.stop()
                return

    def _read(self) -> bytes | None:
        """Return a chunk, empty bytes at the end of the output, or None if nothing can be read now."""
        try:
            data = os.read(self._fd, CHUNK_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""  # a terminal that no process has open any more answers EIO
        if self._is_terminal and len(data) >= _TTY_JOIN_BYTES:
            return self._joined(data)
        return data

    def _joined(self, data: bytes) -> bytes:
        parts, size = [data], len(data)
        while size < CHUNK_BYTES:
            try:
                more = os.read(self._fd, CHUNK_BYTES - size)
            except OSError:
                break  # nothing left for now, or the end; the next read returns the same error again
            if not more:
                break
            parts.append(more)
            size += len(more)
        return b"".join(parts)
