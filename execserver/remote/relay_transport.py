"""One virtual stream as a transport: for the session code it is like any other connection.

It connects the rules of `wire.relay_stream` with the writer of the WebSocket, which may be replaced while a
reliable stream lives.  What a paused connection does not take is held back in the stream, within its bounds;
reading from the WebSocket never stops, since other streams share it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from gevent.hub import get_hub

from execserver.remote.fair_writer import FairWriter
from execserver.remote.outbox import StreamOutbox
from execserver.transports.transport import Receiver
from execserver.wire.close_codes import INVALID_DATA
from execserver.wire.noise_records import MAX_JSON_BYTES
from execserver.wire.relay_frames import RelayFrame
from execserver.wire.relay_stream import ExecutorStream, StreamError, StreamReset
from execserver.wire.reliability import ACK_DELAY_S, PROBE_S

# libev starts a timer at its cached time, so the timer may fire a moment early by our clock.
_TIMER_SLACK_S = 0.002


class Streams(Protocol):
    """The owner of one executor's streams."""

    @property
    def writer(self) -> FairWriter | None:
        """Where frames go; None while there is no WebSocket."""

    def ended(self, transport: RelayTransport, *, reset: bool) -> None:
        """Note that a stream is over; with `reset` its peer gets a reset."""


class RelayTransport:
    """A `Transport` over one stream.  `reason` says why it ended."""

    malformed_prefix = ""  # a malformed message ends the stream instead of being answered
    max_message_bytes = MAX_JSON_BYTES

    def __init__(
        self, stream: ExecutorStream, streams: Streams, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.stream_id = stream.stream_id
        self.outbox = StreamOutbox(self)
        self.reason = ""
        self._stream = stream
        self._streams = streams
        self._clock = clock
        self._receiver: Receiver | None = None
        self._is_paused = False
        self._closing = False
        self._over = False
        self._timer = get_hub().loop.timer(0)
        self._due: float | None = None

    @property
    def queued_bytes(self) -> int:
        """Bytes of queued messages of which nothing was sealed yet."""
        return self._stream.queued_bytes

    @property
    def has_frames(self) -> bool:
        """True if there may be a further frame now."""
        return not self._over and (self._closing or self._stream.has_frames)

    @property
    def is_reliable(self) -> bool:
        """True if the stream survives the loss of its WebSocket."""
        return self._stream.is_reliable

    @property
    def is_open(self) -> bool:
        """False once the stream ends or has ended."""
        return not (self._over or self._closing)

    def deliver_to(self, receiver: Receiver) -> None:
        """Have a receiver for what will arrive, and for the end."""
        self._receiver = receiver

    def start(self) -> None:
        """Start: queue the answer to the handshake for writing."""
        self._stream.open()
        self._want_turn()

    def abandon(self) -> None:
        """End without having started; the peer is told nothing."""
        self._finish(reset=False)

    def receive(self, frame: RelayFrame) -> None:
        """Take a frame of this stream."""
        if self._over:
            return
        now = self._clock()
        try:
            messages = self._stream.feed(frame, now)
        except StreamError as error:
            self._fail(error)
            return
        self._deliver(messages)
        # A plain stream has no acknowledgements to send and no timers.
        if self._stream.is_reliable:
            if self._stream.has_frames_at(now):
                self._want_turn()
            if self._due is None or self._due > now + ACK_DELAY_S:  # nothing new is due sooner than that
                self._arm()

    def queue(self, message: bytes) -> None:
        """Queue one message, to be sent when the stream's turn comes; too long a one ends the stream."""
        if self._over or self._closing:
            return
        try:
            self._stream.send(message, self._clock())
        except StreamError as error:
            self._fail(error)
            return
        self._want_turn()

    def take_frame(self) -> bytes | None:
        """Return the next frame, made now; None if there is none."""
        if self._over:
            return None
        now = self._clock()
        try:
            frame = self._stream.next_frame(now)
        except StreamError as error:
            self._fail(error)
            return None
        self.outbox.taken()
        if frame is None and self._closing and not self._stream.queued_bytes:
            self._end_quietly()
        elif self._stream.is_reliable and (self._due is None or self._due > now + PROBE_S):
            self._arm()  # the probe for what was sent now is due no sooner, so a timer set earlier will do
        return frame

    def flush(self) -> None:
        """Write what is queued in this greenlet, which may wait, unless another one is writing."""
        writer = self._streams.writer
        if writer is not None:
            writer.flush()

    def flush_at_once(self) -> None:
        """Write what is queued as far as that needs no waiting."""
        writer = self._streams.writer
        if writer is not None:
            writer.flush_at_once()

    def pause(self) -> None:
        """Hold back received messages."""
        self._is_paused = True
        self._stream.hold(True)

    def resume(self) -> None:
        """Deliver what was held back, and what arrives from now on."""
        if not self._is_paused or self._over:
            return
        self._is_paused = False
        self._deliver(self._stream.hold(False))
        self._want_turn()

    def close(self, code: int, reason: str) -> None:
        """End the stream: with a reset after a malformed message, else once all is written."""
        if self._over or self._closing:
            return
        self.reason = reason
        # The reference resets a stream for text that is no JSON-RPC; it ends others in silence.
        if code == INVALID_DATA:
            self._stream.close()
            self._finish(reset=True)
            return
        self._closing = True
        self.outbox.finish()
        if self._receiver is not None:
            self._receiver.ended()
        self._want_turn()

    def lost_websocket(self) -> None:
        """Note that the WebSocket is gone: a plain stream ends, a reliable one waits for the next."""
        if self._over:
            return
        try:
            self._stream.lost(self._clock())
        except StreamError as error:
            self._fail(error)
            return
        self._arm()

    def new_websocket(self) -> None:
        """Note that there is a new WebSocket."""
        try:
            self._stream.restored(self._clock())
        except StreamError as error:
            self._fail(error)
            return
        self._want_turn()
        self._arm()

    def _deliver(self, messages: list[bytes]) -> None:
        if messages and self._receiver is not None and not self._closing:
            self._receiver.receive(messages)

    def _want_turn(self) -> None:
        writer = self._streams.writer
        if writer is not None and not self._over:
            writer.ready(self)

    def _arm(self) -> None:
        """Set the timer to the stream's next deadline, if that is sooner than the timer's."""
        due = self._stream.deadline()
        if due is None or self._over:
            return
        if self._due is None or due < self._due - _TIMER_SLACK_S:
            self._due = due
            self._timer.close()
            self._timer = get_hub().loop.timer(max(0.0, due - self._clock()) + _TIMER_SLACK_S)
            self._timer.start(self._tick)

    def _tick(self) -> None:
        self._due = None
        if self._over:
            return
        now = self._clock()
        try:
            self._stream.tick(now)
        except StreamError as error:
            self._fail(error)
            return
        if self._stream.has_frames_at(now):
            self._want_turn()
        self._arm()

    def _fail(self, error: StreamError) -> None:
        self.reason = self.reason or str(error)
        self._finish(reset=not isinstance(error, StreamReset))

    def _end_quietly(self) -> None:
        self._stream.close()
        self._finish(reset=False)

    def _finish(self, *, reset: bool) -> None:
        """Release everything.  The stream's own last frames are sent first; they replace a reset."""
        if self._over:
            return
        self._over = True
        self._timer.close()
        # The stream has cleared its messages, so these frames are few; urgent, since no turn comes any more.
        writer = self._streams.writer
        while (frame := self._stream.next_frame(self._clock())) is not None:
            reset = False
            if writer is not None:
                writer.urgent(frame)
        if writer is not None:
            writer.forget(self)
        self._streams.ended(self, reset=reset)
        self.outbox.let_go()
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.ended()
