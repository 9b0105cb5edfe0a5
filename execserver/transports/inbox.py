"""The inbox: the messages of one peer, on their way to where they are handled, strictly in order.

Messages arrive in the event loop.  What needs no waiting may be handled there at once, while nothing is here
that came before it; all else is for a greenlet.  Messages arrive whatever that greenlet is doing, so the
server notices the end of a peer at once.

Limits: above `INBOX_BYTES` of unhandled messages, each with `_OVERHEAD_BYTES`, reading stops; above
`REPLY_BYTES` of unsent answers handling stops.  So a peer that does not read its answers stops itself, and no
other peer.  After `_AT_ONCE` messages in the loop, or `_TURN_MESSAGES` in the greenlet, others have their
turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from gevent import getcurrent, sleep
from gevent.hub import Waiter, get_hub

from execserver.transports.transport import Transport

INBOX_BYTES = 1024 * 1024
REPLY_BYTES = 1024 * 1024
_OVERHEAD_BYTES = 48  # of a message here, besides its text, which may be empty
_TURN_MESSAGES = 64
_AT_ONCE = 16

# Handles a message if that needs no waiting; returns whether it did.
HandleAtOnce = Callable[[bytes], bool]


def _nothing_at_once(message: bytes) -> bool:
    return False


class Inbox:
    """The messages that have arrived over one transport and have not been handled."""

    def __init__(self, transport: Transport, at_once: HandleAtOnce = _nothing_at_once) -> None:
        self._transport = transport
        self._outbox = transport.outbox
        self._at_once = at_once
        self._hub = get_hub()
        self.waiting: deque[bytes] = deque()  # oldest first; only read by others
        self._bytes = 0
        self._paused = False  # the transport does not read
        self.over = False  # no further message is taken
        self.is_held = False  # nothing further is handled until `release`
        self.is_handled = False  # somebody handles messages: the greenlet, or the loop at once
        self._idle: Waiter[None] | None = None  # there while the greenlet waits for a message

    def receive(self, messages: list[bytes]) -> None:
        """Take messages that arrived.  Called in the event loop."""
        if self.over or not messages:
            return
        is_first = not (self.waiting or self.is_handled or self.is_held)
        if is_first and self._at_once is not _nothing_at_once:
            if len(messages) > 1:
                self._add(messages[1:])
            self._handle_at_once(messages[0])
            if not self.waiting:
                return
        else:
            self._add(messages)
        if not self.is_held:
            self._wake()
        if self._bytes > INBOX_BYTES and not (self._paused or self.over):
            self._paused = True
            self._transport.pause()

    def end(self) -> None:
        """Take no further message; what is here is still handled.  May be called more than once."""
        self.over = True
        self._wake()

    def hold(self) -> None:
        """Handle nothing further for now; what arrives waits here."""
        self.is_held = True

    def release(self) -> None:
        """Handle messages again."""
        self.is_held = False
        if self.waiting:
            self._wake()

    def clear(self) -> None:
        """Drop all messages that are here."""
        self.waiting.clear()

    def let_go(self) -> None:
        """Handle nothing any more; `at_once` refers back to its owner: a reference cycle."""
        self._at_once = _nothing_at_once

    def wait(self) -> bool:
        """Wait for a message; return False if there is none and none can come."""
        while not self.waiting or self.is_held:
            if self.over and not self.waiting:
                return False
            self._idle = Waiter()
            self.is_handled = False
            self._idle.get()
        self.is_handled = True
        return True

    def handle_all(self, handle: Callable[[bytes], object]) -> None:
        """Pass each message to `handle` until none is left, or until `handle` returns a true value."""
        messages, outbox = self.waiting, self._outbox
        turn = _TURN_MESSAGES
        while messages and not self.is_held:
            message = messages.popleft()
            self._bytes -= len(message) + _OVERHEAD_BYTES
            is_enough = handle(message)
            # Half of the limit: else reading would stop and start with each message.
            if self._paused and self._bytes <= INBOX_BYTES // 2:
                self._paused = False
                self._transport.resume()
            if is_enough:
                return
            if outbox.queued > REPLY_BYTES:
                outbox.wait_for_room()
            turn -= 1
            if not turn:
                turn = _TURN_MESSAGES
                outbox.flush()
                sleep(0)

    def _add(self, messages: list[bytes]) -> None:
        self.waiting.extend(messages)
        self._bytes += sum(map(len, messages)) + _OVERHEAD_BYTES * len(messages)

    def _handle_at_once(self, message: bytes) -> None:
        """Handle a message, and those that wait, up to the first that has to wait; never blocks."""
        waiting, outbox = self.waiting, self._outbox
        left = _AT_ONCE
        self.is_handled = True
        outbox.hold()
        try:
            while left and outbox.queued <= REPLY_BYTES and self._at_once(message):
                if not waiting:
                    return
                message = waiting.popleft()
                self._bytes -= len(message) + _OVERHEAD_BYTES
                left -= 1
            waiting.appendleft(message)
            self._bytes += len(message) + _OVERHEAD_BYTES
        finally:
            self.is_handled = False
            outbox.release()

    def _wake(self) -> None:
        idle, self._idle = self._idle, None
        if idle is None:
            return
        # A waiter can be switched to from the hub only.
        if getcurrent() is self._hub:
            idle.switch(None)
        else:
            self._hub.loop.run_callback(idle.switch, None)
