"""A virtual stream, as far as both ends are alike: records and reliability, without any I/O or clock.

The owner of the WebSocket feeds frames and takes frames:

    messages = stream.feed(frame, now)      what arrived, in order
    stream.send(message, now)               queues one JSON message
    stream.next_frame(now)                  the next frame to write, sealed only now; None: nothing to write
    stream.deadline(), stream.tick(now)     timers
    stream.lost(now), stream.restored(now)  the WebSocket is gone; there is a new one
    stream.hold(True), stream.hold(False)   messages are not taken for the moment; they are taken again

`send`, `feed`, `lost`, `restored` and `tick` raise `StreamError` when they end the stream; all but `tick` do
so again once the stream is over.  `error` then says why, and at most one more frame is left to write.  With a
peer that does not announce `relayReliability`, and until its announcement has arrived, the frames are exactly
those of the plain protocol, and the loss of the WebSocket ends the stream.  Times are in seconds, of any
monotonic clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, NoReturn

from execserver.wire.acknowledged_records import AcknowledgedRecords, to_peer
from execserver.wire.noise_records import MAX_JSON_BYTES, RecordReceiver, RecordSender, StreamError
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
    """The common part of both ends; the ends themselves are in `relay_stream`."""

    def __init__(self, stream_id: str, *, announce: bool) -> None:
        self.stream_id = stream_id
        self.error: StreamError | None = None
        self.queued_bytes = 0
        # Whether this end offers or accepts reliability at all.
        self._announce = announce
        self._head = frame_head(stream_id)
        # Frames without records.  They are sent first, also before the stream is open and after its end.
        self._control: deque[Body] = deque()
        self._messages: deque[bytes] = deque()
        # The rest of the message whose records are being sealed.  Messages never share a record.
        self._pieces: Iterator[tuple[int, bytes]] | None = None
        # Sender and receiver exist from the end of the handshake to the end of the stream.
        self._sender: RecordSender | None = None
        self._receiver: RecordReceiver | None = None
        # The acknowledgement state.  It exists as long as the stream may become reliable, because a record
        # that is sent before the agreement may have to be sent again after it.
        self._acknowledgements: Reliability | AcknowledgedRecords | None = None
        self._reliable = False
        self._numbered = False  # the peer numbers its records from 1; nothing of the stream survives then
        self._sent_any = self._received_any = False
        # While nobody takes messages: those that are kept, and whether a record was dropped for lack of room.
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self._holding = self._dropped = False

    @property
    def is_open(self) -> bool:
        """True between the end of the handshake and the end of the stream."""
        return self._sender is not None and self.error is None

    @property
    def is_reliable(self) -> bool:
        """True once both ends have announced it: the stream survives the loss of its WebSocket."""
        return self._reliable

    @property
    def is_connected(self) -> bool:
        """False while a reliable stream has no WebSocket."""
        return self._acknowledgements is None or self._acknowledgements.connected

    @property
    def unacknowledged_bytes(self) -> int:
        """Bytes of records that are kept to be sent again."""
        return self._acknowledgements.unacknowledged if self._acknowledgements is not None else 0

    def heard_at(self, now: float) -> float:
        """Return since when a reliable stream waits for an answer of its peer; `now` if none is due."""
        return (
            self._acknowledgements.heard_at(now)
            if self._acknowledgements is not None and self._reliable
            else now
        )

    def send(self, message: bytes, now: float) -> None:
        """Queue one JSON message.

        Raises `StreamError`, and ends the stream, for a message above 64 MiB or a queue above 128 MiB.
        """
        self._raise_if_over()
        if len(message) > MAX_JSON_BYTES or self.queued_bytes + len(message) > MAX_QUEUED_BYTES:
            self._fail(StreamError(f"a message of {len(message)} bytes, {self.queued_bytes} bytes wait"))
        self._messages.append(message)
        self.queued_bytes += len(message)

    def feed(self, frame: RelayFrame, now: float) -> list[bytes]:
        """Take a frame of this stream; return the messages that are complete now.

        Raises `StreamError` when the frame ends the stream.
        """
        self._raise_if_over()
        try:
            was_reliable = self._reliable
            # A reset may come from the relay.  It must not count as a sign of life of the peer.
            if was_reliable and not isinstance(frame.body, Reset):
                self._hear(frame, now)
            messages = self._take(frame.body, now)
            # The executor is reliable from its answer on: the frame that accepts acknowledges, too.
            if self._reliable and not was_reliable:
                self._hear(frame, now)
            return messages
        except StreamError as error:
            self._fail(error)
        except HandshakeFailed as error:
            self._fail(StreamError(f"the handshake failed: {error}"))

    def next_frame(self, now: float) -> bytes | None:
        """Return the next frame to write, or None.

        A record counts as sent from here on: the caller must write the frame or report the WebSocket lost.
        """
        if self._control:
            return self._encode(self._control.popleft())
        if not self.is_open:
            return None
        acknowledgements = self._acknowledgements if self._reliable else None
        if acknowledgements is not None:
            control = acknowledgements.take_control(now)
            if control is not None:
                return self._encode(control)
            # Records sent before come first: the peer can open later ones only after them.
            again = acknowledgements.take_again()
            if again is not None:
                return self._encode_record(*again)
        return self._next_record(now)

    @property
    def has_frames(self) -> bool:
        """True if `next_frame` may have something; the clock (`deadline`) or the peer may change a False."""
        if self._control or self._messages or self._pieces is not None:
            return True
        return self._acknowledgements is not None and self._reliable and self._acknowledgements.has_frames

    def has_frames_at(self, now: float) -> bool:
        """Return whether `next_frame` has something now, as far as that does not depend on the peer."""
        if self._control or self._messages or self._pieces is not None:
            return True
        return self._acknowledgements is not None and self._reliable and self._acknowledgements.is_due(now)

    def lost(self, now: float) -> None:
        """Note that the WebSocket is gone; a plain stream ends with `StreamError`."""
        self._raise_if_over()
        if not isinstance(self._acknowledgements, Reliability) or not self._reliable:
            # No reset: there is nothing left to send it on.
            self._fail(StreamError("the websocket was lost"), tell=False)
        self._acknowledgements.lost(now)

    def restored(self, now: float) -> None:
        """Note that a reliable stream has a WebSocket again."""
        self._raise_if_over()
        if isinstance(self._acknowledgements, Reliability) and self._reliable:
            self._acknowledgements.restored(now)

    def hold(self, holding: bool) -> list[bytes]:
        """Stop or resume handing out messages; return those that were kept meanwhile.

        A reliable stream keeps 4 MiB and then makes the peer wait; a plain one keeps 128 messages and is
        reset at the next.
        """
        self._holding = holding
        if self._acknowledgements is not None:
            # Only after a record was dropped: then a heartbeat must not be answered with `resume`, which
            # would make the peer send again what there is no room for.
            self._acknowledgements.holding = holding and self._dropped
        if holding:
            return []
        kept, self._kept, self._kept_bytes = self._kept, [], 0
        if self._dropped and self._acknowledgements is not None:
            # The peer does not know that a record was dropped, and sends it again only if asked.
            self._dropped = False
            self._acknowledgements.ask_again()
        return kept

    def deadline(self) -> float | None:
        """Return the time at which `tick` is due, or None."""
        if self._acknowledgements is None or not self._reliable or self.error is not None:
            return None
        return self._acknowledgements.deadline()

    def tick(self, now: float) -> None:
        """Do what is due by `now`; there may be frames to write then."""
        if self._acknowledgements is None or not self._reliable or self.error is not None:
            return
        try:
            self._acknowledgements.tick(now)
        except StreamError as error:
            self._fail(error)

    def close(self) -> None:
        """End the stream from this end.

        A reliable stream sends a last `reset`, because its peer would wait through silence.  A plain one ends
        without a frame, as with the reference.
        """
        if self.error is not None:
            return
        goodbye = [Reset(RESET_CLOSED)] if self._reliable and not self._numbered else []
        self._end(StreamError("this end closed the stream"), tell=False)
        # After `_end`, which empties the queue.
        self._control.extend(goodbye)

    def _next_record(self, now: float) -> bytes | None:
        acknowledgements = self._acknowledgements
        # Sealed only with room in the window: a sealed record has its number for good and must be kept.
        if acknowledgements is not None and not acknowledgements.has_room:
            return None
        record = self._seal_next()
        if record is None:
            return None
        if acknowledgements is not None:
            acknowledgements.sent(*record, now)
        return self._encode_record(*record)

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
            outgoing = self._outgoing(message)
            if (record := self._sender.seal_short(outgoing)) is not None:
                return record
            self._pieces = self._sender.pieces(outgoing)

    def _outgoing(self, message: bytes) -> bytes:
        """Return the text to send for a message; the first one may carry the announcement."""
        first, self._sent_any = not self._sent_any, True
        return self._announced(message) if first else message

    def _encode_record(self, seq: int, payload: bytes) -> bytes:
        ack, bits = self._stamp()
        if self._numbered:
            seq, bits = to_peer(seq, bits)
        return encode_data(self._head, seq, payload, ack, bits)

    def _encode(self, body: Body) -> bytes:
        ack, bits = self._stamp()
        if self._numbered:
            _, bits = to_peer(0, bits)
        return encode_frame(RelayFrame(self.stream_id, body, ack, bits))

    def _stamp(self) -> tuple[int, int]:
        """Return the acknowledgement for a frame that is sent now."""
        # The plain protocol has zeros here, and so has a stream that may become reliable.
        if self._acknowledgements is None or not self._reliable:
            return 0, 0
        return self._acknowledgements.stamp()

    def _hear(self, frame: RelayFrame, now: float) -> None:
        if self._acknowledgements is not None and self._sender is not None:
            self._acknowledgements.heard(frame.ack, frame.ack_bits, self._sender.next_seq, now)

    def _take(self, body: Body, now: float) -> list[bytes]:
        if isinstance(body, Data):
            return self._take_record(body, now)
        if isinstance(body, Reset):
            self._take_reset(body, now)
        elif isinstance(body, Handshake):
            self._take_handshake(body, now)
        elif self._reliable and isinstance(self._acknowledgements, Reliability):
            # Plain streams ignore these three frames, as the reference does.
            if isinstance(body, Resume):
                self._acknowledgements.heard_resume(body.next_seq, now)
            elif isinstance(body, Heartbeat):
                self._acknowledgements.heard_heartbeat(now)
            elif isinstance(body, AckFrame):
                self._acknowledgements.heard_ack_frame()
        return []

    def _take_record(self, body: Data, now: float) -> list[bytes]:
        receiver = self._receiver
        if receiver is None:
            raise StreamError("a record before the end of the handshake")
        acknowledgements = self._acknowledgements if self._reliable else None
        # The receiver does not see a dropped record, so it stays unacknowledged and the peer keeps it.
        if acknowledgements is not None and self._holding and self._kept_bytes > WINDOW_BYTES:
            self._dropped = acknowledgements.holding = True
            return []
        before = receiver.next_seq
        # Below the next number, the record is a repeated one: the peer lacks our acknowledgement.
        messages = receiver.feed(body.seq, body.payload)
        if acknowledgements is not None:
            acknowledgements.received(body.seq >= before, now)
        if messages and not self._received_any:
            self._received_any = True
            self._look_at_first(messages[0], now)
            # The answer that accepts was sent by a reliable executor: it is the first record to acknowledge.
            if self._reliable and self._acknowledgements is not None:
                self._acknowledgements.received(True, now)
        return self._keep(messages) if self._holding else messages

    def _keep(self, messages: list[bytes]) -> list[bytes]:
        self._kept += messages
        self._kept_bytes += sum(map(len, messages))
        # A reliable stream is bounded in `_take_record` instead.
        over = len(self._kept) > PLAIN_KEPT_MESSAGES or self._kept_bytes > MAX_JSON_BYTES
        if over and not self._reliable:
            raise StreamError("too many messages that nobody has taken")
        return []

    def _take_reset(self, body: Reset, now: float) -> None:
        # Only these two reasons mean that the peer may come back; every other one is final.
        state = self._acknowledgements
        if self._reliable and isinstance(state, Reliability) and body.reason in _WAIT_FOR_ANOTHER:
            state.lost_peer(now)
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
            # The plain window of 64 records would end the stream at a gap in a full send window.
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
        # The error and a last `reset` are all that an ended stream keeps.
        self.error = _copied(error)
        self._messages.clear()
        self._control.clear()
        self._kept = []
        self._pieces = self._sender = self._receiver = self._acknowledgements = None
        self.queued_bytes = 0
        # The other end learns of an error by a reset of this one reason, which the contract prescribes.
        if tell and self._tells_of_errors():
            self._control.append(Reset(RESET_PROTOCOL_ERROR))

    def _tells_of_errors(self) -> bool:
        return True


def _copied(error: StreamError) -> StreamError:
    """Return the same error without its traceback, whose frames would keep the stream alive."""
    return type(error)(str(error))
