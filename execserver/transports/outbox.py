"""The outgoing side of one connection: one queue, one writer, limits in bytes.

Messages are framed when they are queued, and written in order.  Only `wait_for_room`, `wait_until_empty` and
`stream` block their callers.  What is queued in one turn of the event loop leaves in one system call: an
answer and the notification behind it share a TCP segment, without any timer.

At the limit `send` still queues, since what the reader lets in limits answers and pongs.  Producers of output
and the reader itself wait in `wait_for_room`, so a client that does not read stops the commands that write
for it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Protocol

from gevent import sleep
from gevent.event import Event
from gevent.hub import get_hub

from execserver.eventloop.deadline import at_most
from execserver.wire.unsent import drop_sent

HIGH_WATER_BYTES = 256 * 1024  # producers wait above this; about 0.3 ms of loopback, so latency stays low
_WRITE_BUFFERS = 64  # buffers passed to one writev; the kernel's limit is 1,024
_READY_WRITE = 2
UNREAD_BYTES = 1024 * 1024  # reading this much takes a client longer than an echo takes at the reference
_LOOK_BYTES = 128 * 1024  # queued between two looks at how much the peer has not read
# While a peer asks for something amid a flood, less may be ahead of the answer; that costs the flood speed.
HASTE_BYTES = 32 * 1024 * 1024  # of output from one request on, a tenth of a second of a fast flood
_HASTE_QUEUED_BYTES = 64 * 1024
HASTE_UNREAD_BYTES = 256 * 1024
_PAUSE_S = 0.001
_MAX_PAUSES = 20
_LARGE_BYTES = 32 * 1024  # a message this large is written at once instead of in the loop's next callback


class Framing(Protocol):
    """How a transport marks the borders of a message."""

    carries_binary: bool  # whether messages may hold any bytes

    def short(self, message: bytes) -> bytes:
        """Return a message of less than 64 KiB with the bytes that `whole` has for it."""

    def whole(self, length: int, *, binary: bool = False) -> tuple[bytes, bytes]:
        """Return the bytes before and after a message of `length` bytes."""

    def piece(self, length: int, *, first: bool, final: bool) -> tuple[bytes, bytes]:
        """Return the bytes before and after one piece of a message that is sent in pieces."""


class Outbox:
    """A `MessageSink` over a non-blocking descriptor, which the transport owns.

    `on_broken` is called once if a write fails for good, `on_written` before each write.  `unread` estimates
    how many bytes the peer has received but not read.
    """

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
        self._queued = 0  # bytes in `_queue`
        # The messages behind one that is being sent in pieces; None while none is.
        self._held: deque[bytes | memoryview] | None = None
        self._held_bytes = 0
        self._unlooked = 0  # bytes queued since the last look at the peer's window
        self._since_asked = 0  # bytes queued since the peer has asked for something
        self._haste = 0  # bytes to queue until there is no haste any more
        self._most_queued, self._most_unread = HIGH_WATER_BYTES, UNREAD_BYTES
        self._flush_due = False  # a callback of the loop will flush
        self._blocked = False  # the kernel takes nothing; the watcher tells when it does again
        self._loop = get_hub().loop
        self._watcher: Any = None  # while it is blocked: most connections never are
        self._room: Event | None = None  # made by the first that waits: most connections never need one
        self._broken = False  # nothing can be written any more
        self.closed = False  # no message is taken any more, but what is queued may still be written

    @property
    def has_room(self) -> bool:
        """Return whether at most the high-water mark is queued."""
        return self.queued <= HIGH_WATER_BYTES

    def asked(self) -> None:
        """Note a request: if the peer lags behind, the answer must not wait behind much."""
        # Only amid other output, so that a request costs no system call.
        if self._since_asked > _LARGE_BYTES and (self._queued or self._unread() > HASTE_UNREAD_BYTES):
            self._haste = HASTE_BYTES
            self._most_queued, self._most_unread = _HASTE_QUEUED_BYTES, HASTE_UNREAD_BYTES
        self._since_asked = 0

    @property
    def queued(self) -> int:
        """Bytes that wait to be written, held messages included."""
        return self._queued + self._held_bytes

    def send(self, message: bytes) -> None:
        """Queue one whole message."""
        if self._held is not None or len(message) >= _LARGE_BYTES:
            self._queue_parts(message)
        elif not self.closed:  # as nearly always; `_queue_parts` would take twice as long
            framed = self._framing.short(message)
            self._queue.append(framed)
            self._added(len(framed))

    def send_parts(self, *parts: bytes) -> None:
        """Queue one whole message given in parts, without joining them."""
        queue = self.send if len(parts) == 1 else self._queue_parts
        queue(*parts)

    def try_send(self, message: bytes) -> bool:
        """Write a short message if nothing is ahead of it; else return False, and nothing has happened."""
        # Little is touched before it is written: after a pause nothing is in a cache.
        if self._queue or self._held is not None or self.closed or len(message) >= _LARGE_BYTES:
            return False
        framed = self._framing.short(message)
        try:
            written = os.write(self._fd, framed)
        except OSError:
            return False  # whoever queues it is told the same
        self._on_written()
        size = len(framed)
        if written < size:
            self._queue.append(framed[written:])
            self._schedule()
        self._queued = size - written
        self._unlooked += size
        self._since_asked += size
        return True

    def _queue_parts(self, *parts: bytes) -> None:
        length = sum(map(len, parts))
        if length < _LARGE_BYTES and self._held is None:
            self.send(b"".join(parts))
        else:
            self._queue_whole(*self._framing.whole(length), length, parts)

    @property
    def carries_binary(self) -> bool:
        """Whether messages may hold any bytes, as their binary form does."""
        return self._framing.carries_binary

    def send_binary(self, *parts: bytes) -> None:
        """Queue one message in binary form, as `send_parts` does."""
        length = sum(map(len, parts))
        self._queue_whole(*self._framing.whole(length, binary=True), length, parts)

    def _queue_whole(self, before: bytes, after: bytes, length: int, parts: tuple[bytes, ...]) -> None:
        if self.closed:
            return
        queue = self._queue if self._held is None else self._held
        # Copying a small message is cheaper than three buffers; a large one must not be copied.
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
        # Not `closed`: the Close frame goes out after `finish`.
        if self._broken:
            return
        # Never held: WebSocket allows control frames between the fragments of a message.
        self._queue.append(data)
        self._added(len(data))

    def stream(self, pieces: Iterable[bytes]) -> None:
        """Send one message in pieces, waiting for room before each; other messages wait behind it.

        Blocks this greenlet until the last piece is queued.  Passes on an exception of the producer and
        leaves the message unfinished: the caller must then end the connection.
        """
        self._held = deque()
        complete = False
        try:
            first = True
            # One piece behind the producer: only the piece after it shows whether a piece is the final one.
            pending: bytes | None = None
            for piece in pieces:
                if pending is not None:
                    if not self._wait_for_own_room():
                        return
                    self._queue_piece(pending, first=first, final=False)
                    first = False
                    sleep(0)  # one large answer must not delay the other connections
                pending = piece
            if self._wait_for_own_room():
                self._queue_piece(pending or b"", first=first, final=True)
                complete = True
        finally:
            self._release_held(complete)

    def wait_for_room(self) -> bool:
        """Wait until at most the high-water mark is queued; return False once the connection is gone.

        Also gives a peer that lags behind a moment to read, at most once for every `_LOOK_BYTES`.
        """
        while self.queued > self._most_queued and not self.closed:
            # Held messages leave only after the last piece, so a flush would make no room for them.
            if self._blocked or self._held is not None:
                self._wait()
            else:
                self.flush()
        if self._unlooked > _LOOK_BYTES:
            self._let_peer_read()
        return not self.closed

    @property
    def may_go_on(self) -> bool:
        """Return whether `wait_for_room` would return True at once."""
        if self.closed or self._queued + self._held_bytes > self._most_queued:
            return False
        if self._unlooked > _LOOK_BYTES:
            if self._unread() > self._most_unread:
                return False
            # Looked now, so `wait_for_room` need not: an echo beside a flood goes on at once.
            self._looked()
        return True

    @property
    def is_amid_message(self) -> bool:
        """True while a message is sent in pieces, of which more are to come."""
        return self._held is not None

    def pack(self) -> list[bytes]:
        """Return what is queued, for `restore`; not while it `is_amid_message`."""
        return [bytes(each) for each in self._queue]

    def restore(self, unsent: list[bytes]) -> None:
        """Queue what another outbox of this connection has not sent."""
        self._queue.extend(unsent)
        self._added(sum(map(len, unsent)))

    def hold(self) -> None:
        """Begin to queue several messages, to be written together; `release` must follow in this turn."""
        self._flush_due = True  # so that none of them schedules a write of its own

    def wait_until_empty(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds until everything is written; return whether it is."""
        self.flush()
        with at_most(timeout):
            while self._queued:
                self._wait()
        return not self._queued

    def flush(self) -> None:
        """Write what the kernel takes now; the rest follows when it takes more."""
        self._flush_due = False
        if self._queue and not (self._blocked or self._broken):
            self._write()

    release = flush  # what was held leaves as everything does

    def finish(self) -> None:
        """Take no further message, wake all waiting greenlets, and go on writing what is queued."""
        self.closed = True
        self._wake()

    def close(self) -> None:
        """Drop what is queued and wake all waiting greenlets.  The descriptor is not used after this."""
        self.closed = True
        self._broken = True
        if self._watcher is not None:
            self._watcher.stop()  # the transport may close the descriptor now, and nothing may watch it then
        self._queue.clear()
        self._queued = 0
        self._held_bytes = 0
        self._on_broken = self._on_written = _nothing  # they refer back to here: a reference cycle
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
        """Wait as `wait_for_room` does, but not for the room of messages that wait behind the pieces."""
        # Those leave after the last piece only, so waiting for their room would never end.
        while self._queued > HIGH_WATER_BYTES and not self.closed:
            if self._blocked:
                self._wait()
            else:
                self.flush()
        return not self.closed

    def _release_held(self, complete: bool) -> None:
        """Queue the messages held back, or drop them: behind half a message the peer understands nothing."""
        if self._held is not None and complete and not self.closed:
            self._queue.extend(self._held)
            self._queued += self._held_bytes
        self._held = None
        self._held_bytes = 0
        self._schedule()
        self._wake()

    def _let_peer_read(self) -> None:
        """Give a peer that lags behind a moment to read, so that the next message waits behind less data.

        At most 20 ms: a peer that reads nothing at all closes its TCP window, which stops the writer anyway.
        """
        # Kernels buffer megabytes of a fast stream, and the echo of a keystroke would wait behind them.
        self._looked()
        for _ in range(_MAX_PAUSES):
            if self.closed or self._unread() <= self._most_unread:
                return
            sleep(_PAUSE_S)

    def _looked(self) -> None:
        if self._haste:
            self._haste = max(0, self._haste - self._unlooked)
            if not self._haste:
                self._most_queued, self._most_unread = HIGH_WATER_BYTES, UNREAD_BYTES
        self._unlooked = 0

    def _queue_piece(self, piece: bytes, *, first: bool, final: bool) -> None:
        before, after = self._framing.piece(len(piece), first=first, final=final)
        self._queue.extend(part for part in (before, piece, after) if part)
        self._added(len(before) + len(piece) + len(after))

    def _added(self, size: int) -> None:
        self._queued += size
        self._unlooked += size
        self._since_asked += size
        # A large message fills segments by itself, so there is nothing to gain from waiting for others.
        if size >= _LARGE_BYTES and not self._blocked:
            self._write()
        elif not self._flush_due:
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
                if len(queue) == 1:  # the usual case, without a list and a writev
                    written = os.write(self._fd, queue[0])
                else:
                    written = os.writev(self._fd, list(islice(queue, _WRITE_BUFFERS)))
                self._queued -= written
                if self._queued:
                    drop_sent(queue, written)
                else:
                    queue.clear()
        except BlockingIOError:
            self._blocked = True
            if self._watcher is None:
                self._watcher = self._loop.io(self._fd, _READY_WRITE)
            self._watcher.start(self._unblocked)
        except OSError:
            self._break()
        # The mark for waking lies below the one for waiting: else producers would wake after each write.
        if self._room is not None and self._queued <= self._most_queued // 2:
            self._wake()

    def _unblocked(self) -> None:
        self._blocked = False
        self._watcher.stop()
        self._watcher = None
        self._write()

    def _break(self) -> None:
        """Give up: the peer is gone, and nothing can be delivered any more."""
        on_broken = self._on_broken  # `close` drops it
        self.close()
        on_broken()


def _nothing() -> None:
    """Do nothing, in place of a callback of a transport that is gone."""
