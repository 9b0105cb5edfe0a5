"""The inbox: the messages of one peer, on their way to the greenlet that handles them strictly in order.

Messages arrive in the event loop, whatever that greenlet is doing, so the server notices the end of a peer at
once.  Limits: above `INBOX_BYTES` of unhandled messages reading stops; above `REPLY_BYTES` of unsent answers
handling stops.  So a peer that does not read its answers stops itself, and no other peer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from gevent import getcurrent, sleep
from gevent.hub import Waiter, get_hub

from execserver.transports.transport import Transport

INBOX_BYTES = 1024 * 1024
REPLY_BYTES = 1024 * 1024
_TURN_MESSAGES = 64  # after that many messages other greenlets run


class Inbox:
    """The messages that have arrived over one transport and have not been handled."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._outbox = transport.outbox
        self._hub = get_hub()
        self._messages: deque[bytes] = deque()
        self._bytes = 0
        self._paused = False  # the transport does not read
        self.over = False  # no further message is taken
        self._idle: Waiter[None] | None = None  # there while the greenlet waits for a message

    def receive(self, messages: list[bytes]) -> None:
        """Take messages that arrived.  Called in the event loop."""
        if self.over:
            return
        self._messages.extend(messages)
        self._bytes += sum(map(len, messages))
        self._wake()
        if self._bytes > INBOX_BYTES and not self.over:
            self._paused = True
            self._transport.pause()

    def end(self) -> None:
        """Take no further message; what is here is still handled.  May be called more than once."""
        self.over = True
        self._wake()

    def clear(self) -> None:
        """Drop all messages that are here."""
        self._messages.clear()

    def wait(self) -> bool:
        """Wait for a message; return False if there is none and none can come."""
        while not self._messages:
            if self.over:
                return False
            self._idle = Waiter()
            self._idle.get()
        return True

    def handle_all(self, handle: Callable[[bytes], object]) -> None:
        """Pass each message to `handle` until none is left, or until `handle` returns a true value."""
        messages, outbox = self._messages, self._outbox
        turn = _TURN_MESSAGES
        while messages:
            message = messages.popleft()
            self._bytes -= len(message)
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

    def _wake(self) -> None:
        idle, self._idle = self._idle, None
        if idle is None:
            return
        # A waiter can be switched to from the hub only.
        if getcurrent() is self._hub:
            idle.switch(None)
        else:
            self._hub.loop.run_callback(idle.switch, None)
