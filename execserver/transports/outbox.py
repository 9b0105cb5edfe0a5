"""The outgoing side of one connection: one queue, one writer, bounds in bytes.

Messages are framed as they are queued and written in order.  Nothing here blocks a caller except
`wait_for_room` and `stream`, which are for those that can wait.  What is queued in one turn of the event
loop leaves in one system call: an answer and the notification behind it share a segment, without any timer.

At the bound `send` still queues (answers and pongs are bounded by what the reader lets in), while producers
of output and the reader itself wait in `wait_for_room`, so a client that does not read stops the children
that write for it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Protocol

from gevent import sleep
from gevent.event import Event
from gevent.hub import get_hub

from execserver.services.deadline import at_most

HIGH_WATER_BYTES = 256 * 1024  # producers wait above this; about 0.3 ms of loopback, so latency stays low
_WRITE_BUFFERS = 64  # buffers handed to one writev; the kernel's limit is 1,024
_READY_WRITE = 2
UNREAD_BYTES = 1024 * 1024  # a client takes longer to read as much than the reference needs for an echo
_LOOK_BYTES = 128 * 1024  # queued between two looks at how much the peer has not read
_PAUSE_S = 0.001
_MAX_PAUSES = 20
_LARGE_BYTES = 32 * 1024  # a message this large is written at once instead of waiting for the loop


class Framing(Protocol):
    """How a carrier marks the borders of a message."""

    def whole(self, length: int) -> tuple[bytes, bytes]:
        """Return what goes before and after a message of `length` bytes."""

    def piece(self, length: int, *, first: bool, final: bool) -> tuple[bytes, bytes]:
        """Return what goes before and after one piece of a message that is sent in pieces."""


class Outbox:
    """A `MessageSink` over a non-blocking descriptor, which stays owned by the transport."""

    def __init__(
        self,
        fd: int,
        framing: Framing,
        on_broken: Callable[[], None],
        on_written: Callable[[], None] = lambda: None,
        unread: Callable[[], int] = lambda: 0,
    ) -> None:
        self._fd = fd
        self._framing = framing
        self._on_broken = on_broken
        self._on_written = on_written
        self._unread = unread
        self._queue: deque[bytes | memoryview] = deque()
        self._queued = 0
        # What waits behind a message that is being sent in pieces.
        self._held: deque[bytes | memoryview] | None = None
        self._held_bytes = 0
        self._unlooked = 0  # bytes queued since the last look at the peer's window
        self._flush_due = False
        self._blocked = False
        self._loop = get_hub().loop
        self._watcher = self._loop.io(fd, _READY_WRITE)
        self._room: Event | None = None  # made for whoever waits
        self._broken = False
        self.closed = False

    @property
    def has_room(self) -> bool:
        """Tell whether at most the high-water mark is queued."""
        return self.queued <= HIGH_WATER_BYTES

    @property
    def queued(self) -> int:
        """Bytes that wait to be written."""
        return self._queued + self._held_bytes

    def send(self, message: bytes) -> None:
        """Queue one whole message."""
        self.send_parts(message)

    def send_parts(self, *parts: bytes) -> None:
        """Queue one whole message given in parts, without joining them."""
        if self.closed:
            return
        length = sum(map(len, parts))
        before, after = self._framing.whole(length)
        queue = self._queue if self._held is None else self._held
        if length < _LARGE_BYTES:
            queue.append(b"".join((before, *parts, after)))
        else:
            queue.extend(part for part in (before, *parts, after) if part)
        size = length + len(before) + len(after)
        if self._held is None:
            self._added(size)
        else:
            self._held_bytes += size

    def send_control(self, data: bytes) -> None:
        """Queue bytes that are already framed and belong to no message (ping, pong, close)."""
        if self._broken:
            return
        # Control frames may stand between the pieces of a message.
        self._queue.append(data)
        self._added(len(data))

    def stream(self, pieces: Iterable[bytes]) -> None:
        """Send one message in pieces, waiting for room before each; other messages queue up behind it.

        Blocks this greenlet until the last piece is queued.  An exception of the producer is passed on with
        the message unfinished: the caller must then drop the connection.
        """
        self._held = deque()
        complete = False
        try:
            first = True
            pending: bytes | None = None
            for piece in pieces:
                if pending is not None:
                    if not self._wait_for_own_room():
                        return
                    self._queue_piece(pending, first=first, final=False)
                    first = False
                    sleep(0)  # one big answer must not hold up the other connections
                pending = piece
            if self._wait_for_own_room():
                self._queue_piece(pending or b"", first=first, final=True)
                complete = True
        finally:
            self._release_held(complete)

    def wait_for_room(self) -> bool:
        """Wait until at most the high-water mark is queued; False once the connection is gone.

        Gives a peer that lags behind a moment besides, at most every `_LOOK_BYTES`.
        """
        while not self.has_room and not self.closed:
            if self._blocked or self._held is not None:
                self._wait()
            else:
                self.flush()
        if self._unlooked > _LOOK_BYTES:
            self._let_peer_read()
        return not self.closed

    def wait_until_empty(self, timeout: float) -> bool:
        """Wait until everything is written, at most `timeout` seconds; tell whether it is."""
        self.flush()
        with at_most(timeout):
            while self._queued:
                self._wait()
        return not self._queued

    def flush(self) -> None:
        """Write what the kernel takes now."""
        self._flush_due = False
        if not (self._blocked or self._broken):
            self._write()

    def finish(self) -> None:
        """Take no further message, wake everybody who waits, and go on writing what is queued."""
        self.closed = True
        self._wake()

    def close(self) -> None:
        """Drop what is queued and wake everybody who waits.  The descriptor is not touched after this."""
        self.closed = True
        self._broken = True
        self._watcher.stop()
        self._queue.clear()
        self._queued = 0
        self._held_bytes = 0
        self._on_broken = self._on_written = _nothing  # they lead back to here
        self._wake()

    def _wait(self) -> None:
        if self._room is None:
            self._room = Event()
        self._room.wait()

    def _wake(self) -> None:
        room, self._room = self._room, None
        if room is not None:
            room.set()

    def _wait_for_own_room(self) -> bool:
        """Wait as `wait_for_room` does, for the one that sends in pieces: what it holds back is no reason."""
        while self._queued > HIGH_WATER_BYTES and not self.closed:
            if self._blocked:
                self._wait()
            else:
                self.flush()
        return not self.closed

    def _release_held(self, complete: bool) -> None:
        """Queue what was held back, or drop it: behind half a message nothing could be understood."""
        if self._held is not None and complete and not self.closed:
            self._queue.extend(self._held)
            self._queued += self._held_bytes
        self._held = None
        self._held_bytes = 0
        self._schedule()
        self._wake()

    def _let_peer_read(self) -> None:
        """Give a peer that lags behind a moment, so that what comes next does not wait behind megabytes.

        Bounded: a peer that reads nothing at all is held back by its closed window instead.
        """
        self._unlooked = 0
        for _ in range(_MAX_PAUSES):
            if self.closed or self._unread() <= UNREAD_BYTES:
                return
            sleep(_PAUSE_S)

    def _queue_piece(self, piece: bytes, *, first: bool, final: bool) -> None:
        before, after = self._framing.piece(len(piece), first=first, final=final)
        self._queue.extend(part for part in (before, piece, after) if part)
        self._added(len(before) + len(piece) + len(after))

    def _added(self, size: int) -> None:
        self._queued += size
        self._unlooked += size
        if size >= _LARGE_BYTES and not self._blocked:
            self._write()
        else:
            self._schedule()

    def _schedule(self) -> None:
        if not (self._flush_due or self._blocked or self._broken):
            self._flush_due = True
            self._loop.run_callback(self.flush)

    def _write(self) -> None:
        queue = self._queue
        if queue:
            self._on_written()
        try:
            while queue:
                if len(queue) == 1:
                    written = os.write(self._fd, queue[0])
                else:
                    written = os.writev(self._fd, list(islice(queue, _WRITE_BUFFERS)))
                self._written(written)
        except BlockingIOError:
            self._blocked = True
            self._watcher.start(self._unblocked)
        except OSError:
            self._break()
        if self._queued <= HIGH_WATER_BYTES // 2:
            self._wake()

    def _written(self, count: int) -> None:
        self._queued -= count
        queue = self._queue
        while count:
            head = queue[0]
            if len(head) > count:
                queue[0] = memoryview(head)[count:]
                return
            count -= len(head)
            queue.popleft()

    def _unblocked(self) -> None:
        self._blocked = False
        self._watcher.stop()
        self._write()

    def _break(self) -> None:
        """The peer is gone: nothing can be delivered any more."""
        on_broken = self._on_broken
        self.close()
        on_broken()


def _nothing() -> None:
    """Stand for a callback of a transport that is gone."""
