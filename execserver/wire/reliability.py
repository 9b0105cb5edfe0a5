"""The acknowledgement state by which a stream survives lost frames and replaced WebSockets; one per end.

The published protocol names the fields (`ack`, `ack_bits`, `resume.next_seq`), but no program uses them.
Between two ends that have both announced `relayReliability` they mean this:

- `ack` is the number of the next record that the sender of the frame expects.  `ack_bits` says which of the
  32 after it have arrived already (bit 0: `ack + 1`).  Every frame carries both.
- `resume` asks the peer to send again everything from `next_seq` on that `ack_bits` does not mark.  It is
  sent on a new WebSocket, when a gap shows, and when there is room again.  Its answer is `ack_frame`.
- `heartbeat` asks for a sign of life: `resume` from an end that takes records, `ack_frame` from one that
  is short of room.  It is sent when acknowledgements fail to come, and on a silent stream.
- `ack_frame` is never answered.  As the answer to a `resume` it says that the other direction goes on too.

A record is sealed once and sent again as the same bytes.  At most 4 MiB or 1,024 records are unacknowledged;
further messages wait.  An end that has something unacknowledged, or has lost its WebSocket, and hears nothing
for 20 s abandons the stream.  Frames keep their order in each direction, so nothing is sent twice without
need; but any order, loss and repetition is survived.  Pure: times are arguments, in seconds.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from execserver.wire.noise_records import RecordReceiver, StreamError, Window
from execserver.wire.relay_frames import AckFrame, Heartbeat, Resume

WINDOW_BYTES: Final = 4 * 1024 * 1024
WINDOW_RECORDS: Final = 1024
# A sender checks its window before it seals, so one more record (65,535 bytes at most) may follow the 4 MiB.
RECEIVE_WINDOW: Final = Window(WINDOW_RECORDS, WINDOW_BYTES + 65536, drops=True)
# Below the 25 s for which a harness tries to resume its session: when its harness has died, a session must be
# free before the next harness stops trying.
SILENCE_S: Final = 20.0
PROBE_S: Final = 0.5
MAX_PROBE_S: Final = 4.0
# With the silence after it, a vanished peer of an idle stream is noticed after 50 s.
IDLE_S: Final = 30.0
ACK_DELAY_S: Final = 0.02
ACK_RECORDS: Final = 8


class Reliability:
    """What one end has sent, what it owes the peer, and when it must act."""

    __slots__ = (
        "_again",
        "_bytes",
        "_first",
        "_gap_asked",
        "_heard",
        "_idle_asked",
        "_marked",
        "_owe_ack_at",
        "_owe_heartbeat",
        "_owe_resume",
        "_owed",
        "_probe_at",
        "_probe_s",
        "_receiver",
        "_since",
        "_syncing",
        "_unacknowledged",
        "connected",
        "holding",
    )

    def __init__(self, receiver: RecordReceiver, now: float) -> None:
        self._receiver = receiver
        self._unacknowledged: dict[int, bytes] = {}
        self._bytes = 0
        self._first = 0  # the peer has everything before this one
        self._marked = 0  # bit n: the peer has the record `_first + 1 + n` too
        self._again: deque[int] = deque()  # what to send again; some of it may be acknowledged meanwhile
        self._owed = 0  # records received and not acknowledged
        self._owe_ack_at: float | None = None
        self._owe_resume = False
        self._owe_heartbeat = False
        self._syncing = False  # nothing is sent until the peer has said where it is
        self._idle_asked = False
        self._gap_asked = (-1, 0.0)  # for which missing record `resume` was last sent, and when
        self._heard = now
        self._since = now  # since when an answer is awaited
        self._probe_s = PROBE_S
        self._probe_at = now
        self.connected = True
        self.holding = False

    @property
    def has_room(self) -> bool:
        """True if one more record may be sent."""
        return (
            self.connected
            and not self._syncing
            and self._bytes < WINDOW_BYTES
            and len(self._unacknowledged) < WINDOW_RECORDS
        )

    @property
    def has_frames(self) -> bool:
        """True if there is something to send besides new records, or an acknowledgement is owed."""
        return bool(
            self._again
            or self._owe_resume
            or self._owe_heartbeat
            or self._owed
            or self._owe_ack_at is not None
        )

    def is_due(self, now: float) -> bool:
        """Return whether something has to be sent now besides new records."""
        return bool(self._again or self._owe_resume or self._owe_heartbeat) or self._is_ack_due(now)

    @property
    def unacknowledged(self) -> int:
        """Bytes of records that are kept to be sent again."""
        return self._bytes

    def sent(self, seq: int, record: bytes, now: float) -> None:
        """Keep a record that goes out for the first time."""
        if not self._awaits():
            self._begin_waiting(now)
        self._unacknowledged[seq] = record
        self._bytes += len(record)

    def take_again(self) -> tuple[int, bytes] | None:
        """Return a record that must be sent again, or None."""
        if not self.connected or self._syncing:
            return None
        while self._again:
            seq = self._again.popleft()
            record = self._unacknowledged.get(seq)
            if record is not None:
                return seq, record
        return None

    def take_control(self, now: float) -> AckFrame | Resume | Heartbeat | None:
        """Return the next frame without a record that is due, or None."""
        if not self.connected:
            return None
        if self._owe_resume:
            self._owe_resume = False
            return Resume(self._receiver.next_seq)
        if self._owe_heartbeat:
            self._owe_heartbeat = False
            return Heartbeat()
        # Any other frame carries the acknowledgement for free; this one is sent only if none came in time.
        return AckFrame() if self._is_ack_due(now) else None

    def _is_ack_due(self, now: float) -> bool:
        due = self._owe_ack_at
        return self._owed >= ACK_RECORDS or (due is not None and now >= due)

    def stamp(self) -> tuple[int, int]:
        """Return `ack` and `ack_bits` for a frame that is sent now; nothing is owed then."""
        self._owed = 0
        self._owe_ack_at = None
        return self._receiver.next_seq, self._receiver.ack_bits()

    def heard(self, ack: int, ack_bits: int, sent_until: int, now: float) -> None:
        """Take the acknowledgement of a frame from the peer; records before `sent_until` were sent.

        Raises `StreamError` for an acknowledgement of a record that was never sent.
        """
        self._heard = now
        self._idle_asked = False
        if ack > sent_until:
            raise StreamError("an acknowledgement of records that were never sent")
        if ack > self._first:
            # The check above bounds this loop: a peer cannot make it run over numbers that were never used.
            for seq in range(self._first, ack):
                self._release(seq)
            self._first = ack
            self._begin_waiting(now)
            self._marked = 0
        # An older `ack` comes from a frame that was overtaken; its bits would mark the wrong records.  Bits
        # of the same `ack` only add up, whatever order their frames came in.
        if ack == self._first:
            self._marked |= ack_bits

    def heard_ack_frame(self) -> None:
        """Take the answer to a `resume`: what was sent before it and is not acknowledged was lost."""
        if self._syncing:
            self._syncing = False
            self._send_again()

    def heard_resume(self, next_seq: int, now: float) -> None:
        """Take the request to send again all that the peer lacks from `next_seq` on."""
        self._syncing = False
        # A smaller number is older than an acknowledgement we have: the peer has got on since.
        if next_seq >= self._first:
            self._send_again()
        self._owe_ack_at = now

    def heard_heartbeat(self, now: float) -> None:
        """Take the request for a sign of life."""
        if self.holding:
            # `resume` would ask for records that there is no room for.
            self._owe_ack_at = now
        else:
            self._owe_resume = True

    def received(self, is_new: bool, now: float) -> None:
        """Note that a record came: it will be acknowledged, a repeated one at once."""
        self._owed += 1
        # A repeated record means that its acknowledgement was lost, and that the peer waits for one.
        if not is_new:
            self._owe_ack_at = now
        elif self._owe_ack_at is None:
            self._owe_ack_at = now + ACK_DELAY_S
        # Order is kept in each direction, so a gap means loss.  While syncing, `resume` has asked already.
        if self._receiver.has_gap and not self._syncing:
            self._ask_for_gap(now)

    def ask_again(self) -> None:
        """Ask the peer for the records that were dropped for lack of room."""
        self._owe_resume = True

    def lost(self, now: float) -> None:
        """Note that the WebSocket is gone: nothing is sent until there is a new one."""
        self.connected = False
        self._owe_heartbeat = False
        self._begin_waiting(now)

    def lost_peer(self, now: float) -> None:
        """Note that the peer has lost its WebSocket: no record is sent until the peer is heard again."""
        if self.connected and not self._syncing:
            self._begin_waiting(now)
            self._syncing = True

    def restored(self, now: float) -> None:
        """Note that there is a new WebSocket: exchange positions with the peer before any record is sent."""
        # A new WebSocket may come before the loss of the old one was noticed.
        if self.connected:
            self.lost(now)
        self.connected = True
        self._syncing = self._owe_resume = True
        self._probe_s = PROBE_S
        self._probe_at = now + PROBE_S

    def heard_at(self, now: float) -> float:
        """Return since when the peer is silent although an answer is due; `now` if none is due."""
        # The silence of an idle stream does not count: it begins when something is due.
        return max(self._heard, self._since) if self._awaits() else now

    def deadline(self) -> float:
        """Return the time of the next `tick`."""
        due = self._heard + IDLE_S
        if self._awaits():
            due = min(due, max(self._heard, self._since) + SILENCE_S)
            if self.connected:
                due = min(due, self._probe_at)
        if self._owe_ack_at is not None and self.connected:
            due = min(due, self._owe_ack_at)
        return due

    def tick(self, now: float) -> None:
        """Do what is due by `now`.  Raises `StreamError` when the peer has been silent for 20 s."""
        if not self._awaits():
            if now < self._heard + IDLE_S:
                return
            self._idle_asked = self._owe_heartbeat = True
            self._begin_waiting(now)
            return
        if now >= self.heard_at(now) + SILENCE_S:
            raise StreamError(f"the peer has been silent for {SILENCE_S:g} s")
        if self.connected and now >= self._probe_at:
            # While syncing, the `resume` itself or its answer may be lost, and nothing is sent without them.
            if self._syncing:
                self._owe_resume = True
            else:
                self._owe_heartbeat = True
            self._probe_s = min(2 * self._probe_s, MAX_PROBE_S)
            self._probe_at = now + self._probe_s

    def _awaits(self) -> bool:
        return bool(self._unacknowledged) or self._syncing or self._idle_asked or not self.connected

    def _begin_waiting(self, now: float) -> None:
        self._since = now
        self._probe_s = PROBE_S
        self._probe_at = now + PROBE_S

    def _release(self, seq: int) -> None:
        record = self._unacknowledged.pop(seq, None)
        if record is not None:
            self._bytes -= len(record)

    def _send_again(self) -> None:
        # Shifted so that bit n is record `first + n`.  Dict and queue are in the order of sending.
        marked, first = self._marked << 1, self._first
        self._again = deque(seq for seq in self._unacknowledged if not marked >> (seq - first) & 1)

    def _ask_for_gap(self, now: float) -> None:
        seq, asked = self._gap_asked
        # Once for each gap, and again when the answer may be lost: every record after a gap comes here.
        if seq != self._receiver.next_seq or now >= asked + PROBE_S:
            self._gap_asked = self._receiver.next_seq, now
            self._owe_resume = True
