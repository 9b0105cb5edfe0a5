"""A plain WebSocket that this side has opened, as a transport: text messages, as on a server's port."""

from __future__ import annotations

from collections import deque

from gevent.event import Event

from execserver.remote.outbox import StreamOutbox
from execserver.remote.rendezvous import Kind, RendezvousSocket
from execserver.settings import Settings
from execserver.transports.transport import Receiver

_ANY_LENGTH = 1 << 40  # plain messages have no limit of their own


class PlainTransport:
    """A `Transport` over a connected WebSocket; the caller of `run` owns the WebSocket."""

    max_message_bytes = _ANY_LENGTH

    def __init__(self, carrier: RendezvousSocket, place: str) -> None:
        self.outbox = StreamOutbox(self)
        self.malformed_prefix = (
            f"failed to parse websocket JSON-RPC message from exec-server websocket {place}"
        )
        self._carrier = carrier
        self._messages: deque[bytes] = deque()
        self.queued_bytes = 0
        self._may_read = Event()
        self._may_read.set()
        self._closing = False

    def run(self, receiver: Receiver) -> None:
        """Pass received messages on until the connection is over."""
        while self._may_read.wait() and (message := self._carrier.receive()) is not None:
            receiver.receive([message])
        self.outbox.let_go()
        receiver.ended()

    def queue(self, message: bytes) -> None:
        """Queue one message, to be sent when its turn comes."""
        self._messages.append(message)
        self.queued_bytes += len(message)
        self._carrier.writer.ready(self)

    def take_frame(self) -> bytes | None:
        """Return the next message, or None."""
        message = self._messages.popleft() if self._messages else None
        if message is not None:
            self.queued_bytes -= len(message)
            self.outbox.taken()
        return message

    @property
    def has_frames(self) -> bool:
        """True if there is a further message."""
        return bool(self._messages)

    def flush(self) -> None:
        """Write what is queued in this greenlet, unless another one is writing."""
        self._carrier.writer.flush()

    def flush_at_once(self) -> None:
        """Write what is queued as far as that needs no waiting."""
        self._carrier.writer.flush_at_once()

    def pause(self) -> None:
        """Stop reading."""
        self._may_read.clear()

    def resume(self) -> None:
        """Read again."""
        self._may_read.set()

    def close(self, code: int, reason: str) -> None:
        """End the connection once what is queued is written, or after a second."""
        if self._closing:
            return
        self._closing = True
        self.outbox.wait_until_empty(1.0)
        self.outbox.finish()
        self._carrier.close()
        self.resume()  # `run` may wait to read again, and must see the end


def plain_kind(settings: Settings) -> Kind:
    """Return the kind of messages on such a WebSocket."""
    return Kind(settings.max_message_bytes, is_text=True)
