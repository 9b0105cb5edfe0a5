"""One plain websocket that this side has opened, as a carrier: text messages, as a server carries them."""

from __future__ import annotations

from collections import deque

from gevent.event import Event

from execserver.remote.outbox import StreamOutbox
from execserver.remote.rendezvous import Kind, RendezvousSocket
from execserver.settings import Settings
from execserver.transports.transport import Receiver

_ANY_LENGTH = 1 << 40  # what leaves in the plain form has no bound of its own


class PlainTransport:
    """A `Transport` over a connected websocket, which stays owned by whoever calls `run`."""

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
        """Hand on what arrives until the connection is over."""
        while self._may_read.wait() and (message := self._carrier.receive()) is not None:
            receiver.receive([message])
        self.outbox.let_go()
        receiver.ended()

    def queue(self, message: bytes) -> None:
        """Send one message when its turn comes."""
        self._messages.append(message)
        self.queued_bytes += len(message)
        self._carrier.writer.ready(self)

    def take_frame(self) -> bytes | None:
        """Return the next message."""
        message = self._messages.popleft() if self._messages else None
        if message is not None:
            self.queued_bytes -= len(message)
            self.outbox.taken()
        return message

    @property
    def has_frames(self) -> bool:
        """Tell whether there is a further message."""
        return bool(self._messages)

    def flush(self) -> None:
        """Write what is queued in this greenlet, if nobody writes."""
        self._carrier.writer.flush()

    def pause(self) -> None:
        """Stop reading."""
        self._may_read.clear()

    def resume(self) -> None:
        """Read again."""
        self._may_read.set()

    def close(self, code: int, reason: str) -> None:
        """End the conversation once what is queued is written."""
        if self._closing:
            return
        self._closing = True
        self.outbox.wait_until_empty(1.0)
        self.outbox.finish()
        self._carrier.close()
        self.resume()


def plain_kind(settings: Settings) -> Kind:
    """Return what messages on such a websocket are like."""
    return Kind(settings.max_message_bytes, is_text=True)
