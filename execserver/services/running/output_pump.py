"""The output pump: reads one output of one process until its end.

The pump owns its descriptor and closes it once, when it ends.  It reads what is there, up to `CHUNK_BYTES`
for each chunk, and joins only what it can read at once; no timer delays output.  Before each read there has
to be room at the client.  If the client does not read, the data stays in the pipe and the command blocks in
its writes.

A short chunk is published by a callback of the event loop, one for each time the loop looks, and leaves at
once.  Where much comes, or the pump has to wait, a greenlet goes on until little is left; now and then it
lets the loop look for keys and requests.  A little is published also while floods wait until a client has
read: the echo of a key must not wait with them.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from gevent import Greenlet, sleep
from gevent.hub import get_hub

from execserver.services.clients.sink import Pace

CHUNK_BYTES = 64 * 1024  # all that a pipe holds; the reference server sends 8 KiB a message
_SHORT_BYTES = 4096  # a larger chunk may have more behind it: others get their turn, then it is read on
_BYTES_A_LOOK = 4 * CHUNK_BYTES  # until the loop looks for what has arrived, which costs a tenth of a chunk
_AHEAD_BYTES = 4096  # published while others let a slow client read; more than any echo, and little for it
_TTY_JOIN_BYTES = 2000  # a terminal returns at most 4 KiB a read; a read this full means that more is waiting
_REOPENED_S = 0.05
_READY_READ = 1


class OutputPump:
    """One output: `publish(stream, data, at_once)` takes each chunk, `pace` says when it may take the next.

    `at_once` says that the chunk should leave in this turn of the loop, as nothing joins it there.
    `may_end` tells whether the process has exited; until then the pump keeps a terminal open.
    """

    def __init__(
        self,
        stream: str,
        fd: int,
        publish: Callable[[str, bytes, bool], None],
        pace: Pace,
        on_end: Callable[[], None],
        may_end: Callable[[], bool],
    ) -> None:
        self.stream = stream
        self.ended = False
        self._fd = fd
        self._publish = publish
        self.pace = pace
        self._on_end = on_end
        self._may_end = may_end
        self._is_terminal = stream == "pty"
        self._hub = get_hub()
        self._watcher = self._hub.loop.io(fd, _READY_READ)
        self._greenlet: Greenlet[[], None] | None = None  # while the loop does not watch
        self._ahead = _AHEAD_BYTES  # that it may publish while it should wait

    def start(self) -> None:
        """Start reading."""
        self._watcher.start(self._readable)

    @property
    def fd(self) -> int:
        """The descriptor, which this pump owns until it has ended."""
        return self._fd

    def drain(self, limit: int) -> None:
        """Read what is there now, at most about `limit` bytes, without waiting.

        This is called while the pump itself waits; the output may end in here.
        """
        while not self.ended and limit > 0:
            data = self._read()
            if data is None:
                return
            if not data:
                self.stop()
                return
            limit -= len(data)
            self._publish(self.stream, data, False)

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

    def _readable(self) -> None:
        """Publish one chunk.  Called in the event loop, which must not wait."""
        if self.pace.may_go_on:
            data = self._read()
            self._ahead = _AHEAD_BYTES if len(data or b"") <= _SHORT_BYTES else 0
        elif self._ahead and self.pace.has_room:
            data = self._read(self._ahead)
            self._ahead -= len(data or b"")
        else:
            self._go_on_in_greenlet()
            return
        if data:
            self._publish(self.stream, data, True)
            if len(data) > _SHORT_BYTES and not self.ended:
                self._go_on_in_greenlet()
        elif data is not None:
            if self._is_kept_open():
                self._go_on_in_greenlet()
            else:
                self.stop()

    def _go_on_in_greenlet(self) -> None:
        self._watcher.stop()
        self._greenlet = Greenlet.spawn(self._run)

    def _run(self) -> None:
        """Read until little is left or the output ends."""
        unlooked = 0
        while True:
            self.pace.wait_for_room()
            if self.ended:  # stopped meanwhile: the closed descriptor's number may name another file by now
                return
            data = self._read()
            if data:
                self._publish(self.stream, data, False)
                if len(data) <= _SHORT_BYTES:
                    break
                unlooked += len(data)
                if unlooked < _BYTES_A_LOOK:
                    sleep(0)
                else:  # gevent would resume fifty such sleeps and more before the loop looks again
                    unlooked = 0
                    self._hub.wait(self._watcher)
            elif data is None:
                break
            elif self._is_kept_open():
                sleep(_REOPENED_S)
            else:
                self._greenlet = None  # `stop` must not kill the greenlet it runs in
                self.stop()
                return
        self._greenlet = None
        self._watcher.start(self._readable)

    def _is_kept_open(self) -> bool:
        """Return whether this is a terminal that no process has open while the command lives."""
        # The command may open it again, and closing our side would send it SIGHUP.  The event loop cannot
        # wait for an open, so a greenlet tries now and then.
        return self._is_terminal and not self._may_end()

    def _read(self, most: int = CHUNK_BYTES) -> bytes | None:
        """Return a chunk, empty bytes at the end of the output, or None if nothing can be read now."""
        try:
            data = os.read(self._fd, most)
        except BlockingIOError:
            return None
        except OSError:
            return b""  # a terminal that no process has open any more answers EIO
        if self._is_terminal and len(data) >= _TTY_JOIN_BYTES:
            return self._joined(data, most)
        return data

    def _joined(self, data: bytes, most: int) -> bytes:
        parts, size = [data], len(data)
        while size < most:
            try:
                more = os.read(self._fd, most - size)
            except OSError:
                break  # nothing left for now, or the end; the next read returns the same error again
            if not more:
                break
            parts.append(more)
            size += len(more)
        return b"".join(parts)
