"""What both ends of a virtual stream do: records and reliability, without any I/O or clock.

Whoever owns the WebSocket feeds frames and takes frames:

    messages = stream.feed(frame, now)      what arrived, in order
    stream.send(message, now)               queues one JSON message
    stream.next_frame(now)                  the next frame to write, sealed only now; None: nothing to say
    stream.deadline(), stream.tick(now)     timers
    stream.lost(now), stream.restored(now)  the WebSocket went away; there is another one
    stream.hold(True), stream.hold(False)   nobody takes messages for the moment; they are taken again

All of these raise `StreamError` when the stream is over, once and for the reason; after that it only has its
last frame to say, if any, and `error` says why.  With a peer that does not announce `relayReliability`, and
until that was seen, the frames are exactly the plain protocol's, and losing the WebSocket ends the stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, NoReturn

from execserver.wire.noise_records import (
    MAX_JSON_BYTES,
    RecordReceiver,
    RecordSender,
    StreamError,
)
from execserver.wire.noise_state import HandshakeFailed
from execserver.wire.relay_frames import (
    RESET_CLOSED,
    RESET_EXECUTOR_LOST,
    RESET_HARNESS_LOST,
    RESET_PROTOCOL_ERROR,
    AckFrame,
    Body,
    Data,
    Handshake,
    Heartbeat,
    RelayFrame,
    Reset,
    Resume,
    encode_data,
    encode_frame,
    frame_head,
)
from execserver.wire.reliability import RECEIVE_WINDOW, WINDOW_BYTES, Reliability

MAX_QUEUED_BYTES: Final = 2 * MAX_JSON_BYTES
"""What may wait to be sealed; whoever sends should stop long before."""

PLAIN_KEPT_MESSAGES: Final = 128
"""A plain stream with more messages that nobody took is reset, as at the reference."""

_WAIT_FOR_ANOTHER: Final = (RESET_HARNESS_LOST, RESET_EXECUTOR_LOST)


class StreamReset(StreamError):
    """The peer, or the relay for it, has ended the stream; the text holds its reason."""


class RelayStream:
    """What both ends have in common; `relay_stream` has the ends."""

    def __init__(self, stream_id: str, *, announce: bool) -> None:
        self.stream_id = stream_id
        self.error: StreamError | None = None
        self.queued_bytes = 0
        self._announce = announce
        self._head = frame_head(stream_id)
        self._control: deque[Body] = deque()
        self._messages: deque[bytes] = deque()
        self._pieces: Iterator[tuple[int, bytes]] | None = None
        self._sender: RecordSender | None = None
        self._receiver: RecordReceiver | None = None
        self._account: Reliability | None = None
        self._reliable = False
        self._sent_any = self._received_any = False
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self._holding = self._dropped = False

    @property
    def is_open(self) -> bool:
        """True between the end of the handshake and the end of the stream."""
        return self._sender is not None and self.error is None

    @property
    def is_reliable(self) -> bool:
        """True once both ends have announced it: the stream outlives its WebSocket."""
        return self._reliable

    @property
    def is_connected(self) -> bool:
        """False while a reliable stream has no WebSocket."""
        return self._account is None or self._account.connected

    @property
    def unacknowledged_bytes(self) -> int:
        """What is kept for sending again."""
        return self._account.unacknowledged if self._account is not None else 0

    def heard_at(self, now: float) -> float:
        """Return since when the peer owes a reliable stream an answer; `now` when it does not."""
        return self._account.heard_at(now) if self._account is not None and self._reliable else now

    def send(self, message: bytes, now: float) -> None:
        """Queue one message."""
        self._raise_if_over()
        if len(message) > MAX_JSON_BYTES or self.queued_bytes + len(message) > MAX_QUEUED_BYTES:
            self._fail(StreamError(f"a message of {len(message)} bytes, {self.queued_bytes} bytes wait"))
        self._messages.append(message)
        self.queued_bytes += len(message)

    def feed(self, frame: RelayFrame, now: float) -> list[bytes]:
        """Take a frame of this stream; return the messages that are complete now."""
        self._raise_if_over()
        try:
            was_reliable = self._reliable
            if was_reliable and not isinstance(frame.body, Reset):
                self._hear(frame, now)
            messages = self._take(frame.body, now)
            if self._reliable and not was_reliable:
                self._hear(frame, now)
            return messages
        except StreamError as error:
            self._fail(error)
        except HandshakeFailed as error:
            self._fail(StreamError(f"the handshake failed: {error}"))

    def next_frame(self, now: float) -> bytes | None:
        """Return the next frame to write, or None; a record counts as sent from here on."""
        if self._control:
            return self._encode(self._control.popleft())
        if not self.is_open:
            return None
        account = self._account if self._reliable else None
        if account is not None:
            control = account.take_control(now)
            if control is not None:
                return self._encode(control)
            again = account.take_again()
            if again is not None:
                return self._encode(Data(*again))
        return self._next_record(now)

    @property
    def has_frames(self) -> bool:
        """Tell whether `next_frame` may have something; False only where it has nothing by itself.

        What the clock or the peer will make due is told by `deadline` and `feed`.
        """
        if self._control or self._messages or self._pieces is not None:
            return True
        return self._account is not None and self._reliable and self._account.has_frames

    def lost(self, now: float) -> None:
        """The WebSocket is gone; a plain stream ends."""
        self._raise_if_over()
        if self._account is None or not self._reliable:
            self._fail(StreamError("the websocket was lost"), tell=False)
        self._account.lost(now)

    def restored(self, now: float) -> None:
        """A reliable stream has a WebSocket again."""
        self._raise_if_over()
        if self._account is not None and self._reliable:
            self._account.restored(now)

    def hold(self, holding: bool) -> list[bytes]:
        """Say whether messages may be handed out; returns those that were kept meanwhile.

        A reliable stream keeps 4 MiB and then lets the peer wait; a plain one keeps 128 messages and is
        reset at the next.
        """
        self._holding = holding
        if self._account is not None:
            self._account.holding = holding and self._dropped
        if holding:
            return []
        kept, self._kept, self._kept_bytes = self._kept, [], 0
        if self._dropped and self._account is not None:
            self._dropped = False
            self._account.ask_again()
        return kept

    def deadline(self) -> float | None:
        """Return when `tick` is wanted, or None."""
        if self._account is None or not self._reliable or self.error is not None:
            return None
        return self._account.deadline()

    def tick(self, now: float) -> None:
        """Do what is due by `now`; there may be frames to write then."""
        if self._account is None or not self._reliable or self.error is not None:
            return
        try:
            self._account.tick(now)
        except StreamError as error:
            self._fail(error)

    def close(self) -> None:
        """End the stream from this end: a reliable one with a last frame, a plain one in silence."""
        if self.error is not None:
            return
        goodbye = [Reset(RESET_CLOSED)] if self._reliable else []
        self._end(StreamError("this end closed the stream"), tell=False)
        self._control.extend(goodbye)

    def _next_record(self, now: float) -> bytes | None:
        account = self._account
        if account is not None and not account.has_room:
            return None
        record = self._seal_next()
        if record is None:
            return None
        if account is not None:
            account.sent(*record, now)
        return self._encode(Data(*record))

    def _seal_next(self) -> tuple[int, bytes] | None:
        while True:
            if self._pieces is not None:
                record = next(self._pieces, None)
                if record is not None:
                    return record
                self._pieces = None
            if not self._messages or self._sender is None:
                return None
            message = self._messages.popleft()
            self.queued_bytes -= len(message)
            self._pieces = self._sender.pieces(self._outgoing(message))

    def _outgoing(self, message: bytes) -> bytes:
        """Return what is really sent for a message; the first one may announce something."""
        first, self._sent_any = not self._sent_any, True
        return self._announced(message) if first else message

    def _encode(self, body: Body) -> bytes:
        ack, bits = self._account.stamp() if self._account is not None and self._reliable else (0, 0)
        if isinstance(body, Data):
            return encode_data(self._head, body.seq, body.payload, ack, bits)
        return encode_frame(RelayFrame(self.stream_id, body, ack, bits))

    def _hear(self, frame: RelayFrame, now: float) -> None:
        if self._account is not None and self._sender is not None:
            self._account.heard(frame.ack, frame.ack_bits, self._sender.next_seq, now)

    def _take(self, body: Body, now: float) -> list[bytes]:
        if isinstance(body, Data):
            return self._take_record(body, now)
        if isinstance(body, Reset):
            self._take_reset(body, now)
        elif isinstance(body, Handshake):
            self._take_handshake(body, now)
        elif self._reliable and self._account is not None:
            if isinstance(body, Resume):
                self._account.heard_resume(body.next_seq, now)
            elif isinstance(body, Heartbeat):
                self._account.heard_heartbeat(now)
            elif isinstance(body, AckFrame):
                self._account.heard_ack_frame()
        return []

    def _take_record(self, body: Data, now: float) -> list[bytes]:
        receiver = self._receiver
        if receiver is None:
            raise StreamError("a record before the end of the handshake")
        account = self._account if self._reliable else None
        if account is not None and self._holding and self._kept_bytes > WINDOW_BYTES:
            self._dropped = account.holding = True
            return []
        before = receiver.next_seq
        messages = receiver.feed(body.seq, body.payload)
        if account is not None:
            account.received(body.seq >= before, now)
        if messages and not self._received_any:
            self._received_any = True
            self._look_at_first(messages[0], now)
            if self._reliable and self._account is not None:
                self._account.received(True, now)
        return self._keep(messages) if self._holding else messages

    def _keep(self, messages: list[bytes]) -> list[bytes]:
        self._kept += messages
        self._kept_bytes += sum(map(len, messages))
        over = len(self._kept) > PLAIN_KEPT_MESSAGES or self._kept_bytes > MAX_JSON_BYTES
        if over and not self._reliable:
            raise StreamError("too many messages that nobody has taken")
        return []

    def _take_reset(self, body: Reset, now: float) -> None:
        if self._reliable and self._account is not None and body.reason in _WAIT_FOR_ANOTHER:
            self._account.lost_peer(now)
            return
        self._end(StreamReset(f"the stream was reset: {body.reason}"), tell=False)
        self._raise_if_over()

    def _take_handshake(self, body: Handshake, now: float) -> None:
        raise StreamError("a handshake on an open stream")

    def _announced(self, message: bytes) -> bytes:
        raise NotImplementedError

    def _look_at_first(self, message: bytes, now: float) -> None:
        raise NotImplementedError

    def _become_reliable(self) -> None:
        self._reliable = True
        if self._receiver is not None:
            self._receiver.window = RECEIVE_WINDOW

    def _raise_if_over(self) -> None:
        if self.error is not None:
            raise _copied(self.error)

    def _fail(self, error: StreamError, *, tell: bool = True) -> NoReturn:
        self._end(error, tell=tell)
        raise _copied(error)

    def _end(self, error: StreamError, *, tell: bool) -> None:
        if self.error is not None:
            return
        self.error = _copied(error)
        self._messages.clear()
        self._control.clear()
        self._kept = []
        self._pieces = self._sender = self._receiver = self._account = None
        self.queued_bytes = 0
        if tell and self._tells_of_errors():
            self._control.append(Reset(RESET_PROTOCOL_ERROR))

    def _tells_of_errors(self) -> bool:
        return True


def _copied(error: StreamError) -> StreamError:
    """Return the same error without a traceback: one that is kept would hold the stream it is kept by."""
    return type(error)(str(error))
