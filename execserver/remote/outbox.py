"""The outgoing side of a connection whose messages a fair writer takes one by one.

A message is framed and encrypted only when its stream's turn comes: while it waits it costs nothing more, and
it is never lost between two layers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from gevent import getcurrent, sleep
from gevent.event import Event
from gevent.hub import get_hub

from execserver.eventloop.deadline import at_most
from execserver.transports.outbox import HIGH_WATER_BYTES


class Carrier(Protocol):
    """The transport that the queue belongs to."""

    @property
    def queued_bytes(self) -> int:
        """Bytes of queued messages of which nothing was taken yet."""

    @property
    def max_message_bytes(self) -> int:
        """The longest message in bytes; a longer one ends the connection."""

    def queue(self, message: bytes) -> None:
        """Take one message."""

    def flush(self) -> None:
        """Write what is queued in this greenlet, unless another one is writing."""

    def flush_at_once(self) -> None:
        """Write what is queued as far as that needs no waiting."""


class StreamOutbox:
    """A `MessageSink` for one stream."""

    carries_binary = True

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self._hub = get_hub()
        self._room: Event | None = None  # made only when a greenlet waits
        self.closed = False

    @property
    def queued(self) -> int:
        """Bytes that are queued."""
        return self._carrier.queued_bytes

    @property
    def has_room(self) -> bool:
        """True if at most the high-water mark is queued."""
        return self.queued <= HIGH_WATER_BYTES

    def send(self, message: bytes) -> None:
        """Queue one whole message."""
        if not self.closed:
            self._carrier.queue(message)

    def send_parts(self, *parts: bytes) -> None:
        """Queue one whole message given in parts."""
        self.send(parts[0] if len(parts) == 1 else b"".join(parts))

    send_binary = send_parts

    def try_send(self, message: bytes) -> bool:
        """Return False: others' messages may be ahead of it in the writer."""
        return False

    def stream(self, pieces: Iterable[bytes]) -> None:
        """Queue one message that comes in pieces.

        Its length is sent first, so it is collected as a whole.  Waits for room before it begins.
        """
        self.wait_for_room()
        collected: list[bytes] = []
        size = 0
        for piece in pieces:
            collected.append(piece)
            size += len(piece)
            if self.closed or size > self._carrier.max_message_bytes:
                break  # a message of this length ends the connection anyway
            sleep(0)
        self.send(b"".join(collected))

    def wait_for_room(self) -> bool:
        """Wait until at most the high-water mark is queued; False once the connection is gone."""
        while not self.has_room and not self.closed:
            if self._room is None:
                self._room = Event()
            self._room.wait()
        return not self.closed

    is_amid_message = False  # messages are queued as a whole

    @property
    def may_go_on(self) -> bool:
        """True if `wait_for_room` would return True at once."""
        return self.has_room and not self.closed

    def asked(self) -> None:
        """Do nothing: a stream's window bounds what is ahead of an answer."""

    def hold(self) -> None:
        """Do nothing: what is queued is written later in any case."""

    def release(self) -> None:
        """Write what the event loop has sent; whoever reads requests writes their answers, in one batch."""
        if getcurrent() is self._hub:
            self._carrier.flush_at_once()

    def wait_until_empty(self, timeout: float) -> bool:
        """Wait until no message is queued, at most `timeout` seconds; return whether none is."""
        with at_most(timeout):
            while self.queued and not self.closed:
                sleep(0.005)
        return not self.queued

    def flush(self) -> None:
        """Write what is queued at once, which saves a switch to the writer's greenlet."""
        if not self.closed:
            self._carrier.flush()

    def taken(self) -> None:
        """Note that messages were taken, which may end a wait for room."""
        # At half of the mark, so that a sender does not wake for each message.
        if self._room is not None and self.queued <= HIGH_WATER_BYTES // 2:
            self._wake()

    def finish(self) -> None:
        """Take no further message and wake all that wait."""
        self.closed = True
        self._wake()

    def let_go(self) -> None:
        """Drop the reference to the transport, which has ended: the cycle would wait for a collection."""
        self.finish()
        self._carrier = _OVER

    def _wake(self) -> None:
        room, self._room = self._room, None
        if room is not None:
            room.set()


class _Over:
    """Stands for the transport once it has ended."""

    queued_bytes = 0
    max_message_bytes = 0

    def queue(self, message: bytes) -> None:
        """Take nothing."""

    def flush(self) -> None:
        """Write nothing."""

    def flush_at_once(self) -> None:
        """Write nothing."""


_OVER = _Over()
