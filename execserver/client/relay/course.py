"""What a relay's client knows of its stream, and when it does what.  Without sockets, clocks and tasks.

The owner reads and writes the WebSockets, and takes frames from `stream` when it can write.  Times are in
seconds, of any monotonic clock.  The methods that take what happened raise `StreamError` (`arrived` also
`InvalidFrame`) when it ends the stream; the owner then calls `end`.

Bounds: 4 MiB of messages that nobody has taken (then the executor is held back), 1 MiB of messages that are
not sealed yet (then senders wait), and those of the stream.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from execserver.client.errors import RegistryRefused, TransportClosed, kept
from execserver.client.relay.losses import Losses
from execserver.wire.relay_frames import decode_frame
from execserver.wire.relay_stream import HarnessStream, StreamRejected

INBOX_BYTES: Final = 4 * 1024 * 1024
UNSEALED_BYTES: Final = 1024 * 1024
DOUBT_S: Final = 6.0  # of silence although an answer is due; then the WebSocket is replaced


class RelayCourse:
    """The state of one transport through a relay, from its first WebSocket to its end."""

    def __init__(self, stream: HarnessStream, now: float) -> None:
        """Begin with a WebSocket that is there."""
        self.stream = stream
        self.error: Exception | None = None  # set once the stream is over
        self.is_holding = False
        self._connected_at = now
        self._losses = Losses()
        self._has_brought = False  # a message, since this WebSocket is there
        self._messages: deque[bytes] = deque()
        self._inbox_bytes = 0

    @property
    def has_messages(self) -> bool:
        """True if a message can be taken."""
        return bool(self._messages)

    @property
    def is_full(self) -> bool:
        """True if the executor must be held back."""
        return self._inbox_bytes > INBOX_BYTES

    @property
    def has_room(self) -> bool:
        """True if another message may be sent."""
        return self.stream.queued_bytes <= UNSEALED_BYTES

    @property
    def has_frames(self) -> bool:
        """True if there may be a further frame to write now."""
        return self.error is None and self.stream.has_frames

    def arrived(self, data: bytes, now: float) -> bool:
        """Take a message of the WebSocket; return whether it was a frame of this stream."""
        frame = decode_frame(data)
        # As by the reference's harness: other streams' frames are ignored, an invalid one ends this.
        if frame.stream_id != self.stream.stream_id:
            return False
        self._keep(self.stream.feed(frame, now))
        return True

    def take_message(self) -> bytes:
        """Return the oldest message; there must be one."""
        message = self._messages.popleft()
        self._inbox_bytes -= len(message)
        return message

    def hold(self) -> bool:
        """Make the executor wait; return False if nothing more must be read until `release` for that."""
        self.is_holding = True
        if self.stream.is_reliable:
            self.stream.hold(True)
        return self.stream.is_reliable

    def release(self) -> bool:
        """Let the executor go on, if enough messages were taken; return whether it was held back."""
        if not self.is_holding or self._inbox_bytes > INBOX_BYTES // 2:
            return False
        self.is_holding = False
        self._keep(self.stream.hold(False))
        return True

    def is_doubtful(self, now: float) -> bool:
        """Return whether the executor has been silent for so long that the WebSocket is to be replaced."""
        return now >= max(self._connected_at, self.stream.heard_at(now)) + DOUBT_S

    def lost(self, now: float) -> None:
        """Note that the WebSocket is gone."""
        self._losses.add(now - self._connected_at, brought=self._has_brought)
        self._has_brought = False
        self.stream.lost(now)

    def restored(self, now: float) -> None:
        """Note that there is another WebSocket."""
        self._connected_at = now
        self.stream.restored(now)

    def pause(self, failures: int) -> float:
        """Return the seconds to wait before the next attempt to connect, after so many that failed."""
        return self._losses.next_pause(failures - 1) if failures else self._losses.first_pause()

    def end(self, error: Exception) -> bool:
        """Note why the stream is over; return False if it was already."""
        if self.error is not None:
            return False
        self.error = kept(error)
        return True

    def outcome(self) -> TransportClosed | RegistryRefused:
        """Return a new error that says why the stream is over, for who waits for messages."""
        if isinstance(self.error, StreamRejected):
            return RegistryRefused(str(self.error))
        return self.closed()

    def closed(self) -> TransportClosed:
        """Return a new error that says why the stream is over, for who sends."""
        # One for each caller: several would mix their tracebacks in one.
        closed = TransportClosed(str(self.error))
        closed.__cause__ = self.error
        return closed

    def _keep(self, messages: list[bytes]) -> None:
        if messages:
            self._has_brought = True
            self._messages.extend(messages)
            self._inbox_bytes += sum(map(len, messages))


def silence() -> TransportClosed:
    """Return the reason for replacing a doubtful WebSocket."""
    return TransportClosed(f"the executor has been silent for {DOUBT_S:g} s")


def way_lost(reason: str) -> TransportClosed:
    """Return the reason why a plain stream is over whose WebSocket has ended."""
    return TransportClosed(f"the way to the relay is lost: {reason}")
