"""The acknowledgement state of a peer that numbers its records from 1, as upstream proposes it.

Such a peer announces nothing: its first record says so, by its number 1 and by being sealed as the first.
Against our own reliability (`reliability`) its fields mean:

- `data.seq` is one more than the number of the record here, in both directions;
- `ack` is the highest number of those received in order, so the number of the next record here; 0: none;
- bit i of `ack_bits` is the record `ack + 1 + i`, so the bit i - 1 here.  Bit 0 must be 0;
- `ack_frame` carries these alone.  There is neither `resume` nor `heartbeat`, and nothing survives the
  WebSocket.

At most 32 records and 2 MiB are unacknowledged; further messages wait unsealed.  One that is not acknowledged
for 500 ms is sent again, as the same bytes; the clock is looked at every 50 ms.  A peer that acknowledges
nothing for 20 s ends the stream.  Pure: times are arguments, in seconds.
"""

from __future__ import annotations

from typing import Final

from execserver.wire.noise_records import RecordReceiver, StreamError, Window
from execserver.wire.relay_frames import AckFrame, Data, RelayFrame
from execserver.wire.reliability import ACK_DELAY_S, ACK_RECORDS, SILENCE_S

WINDOW_RECORDS: Final = 32
WINDOW_BYTES: Final = 2 * 1024 * 1024
# A peer checks its window before it seals, so one more record may follow the 2 MiB.
RECEIVE_WINDOW: Final = Window(WINDOW_RECORDS, WINDOW_BYTES + 65536, drops=True)
AGAIN_S: Final = 0.5
LOOK_S: Final = 0.05
_BITS: Final = 0xFFFFFFFF


class AcknowledgedRecords:
    """What this end has sent, and what it owes the peer; in the numbers of `noise_records`."""

    connected = True  # there is no stream without a WebSocket

    __slots__ = (
        "_again",
        "_bytes",
        "_marked",
        "_owe_ack_at",
        "_owed",
        "_progress",
        "_receiver",
        "_sent",
        "holding",
    )

    def __init__(self, receiver: RecordReceiver, now: float) -> None:
        self._receiver = receiver
        self._sent: dict[int, tuple[bytes, float]] = {}  # what is unacknowledged, and when it was sent last
        self._bytes = 0
        self._marked: set[int] = set()  # of these, those that the peer has all the same
        self._again: list[int] = []
        self._owed = 0
        self._owe_ack_at: float | None = None
        self._progress = now  # when an acknowledgement last released something, or the first record was sent
        self.holding = False

    @property
    def has_room(self) -> bool:
        """True if one more record may be sent."""
        return len(self._sent) < WINDOW_RECORDS and self._bytes < WINDOW_BYTES

    @property
    def has_frames(self) -> bool:
        """True if there is something to send besides new records, or an acknowledgement is owed."""
        return bool(self._again or self._owed or self._owe_ack_at is not None)

    def is_due(self, now: float) -> bool:
        """Return whether something has to be sent now besides new records."""
        return bool(self._again) or self._is_ack_due(now)

    @property
    def unacknowledged(self) -> int:
        """Bytes of records that are kept to be sent again."""
        return self._bytes

    def sent(self, seq: int, record: bytes, now: float) -> None:
        """Keep a record that goes out for the first time."""
        if not self._sent:
            self._progress = now
        self._sent[seq] = (record, now)
        self._bytes += len(record)

    def take_again(self) -> tuple[int, bytes] | None:
        """Return a record that must be sent again, or None."""
        while self._again:
            seq = self._again.pop(0)
            if seq in self._sent and seq not in self._marked:
                return seq, self._sent[seq][0]
        return None

    def take_control(self, now: float) -> AckFrame | None:
        """Return an acknowledgement that is due and that no other frame has carried, or None."""
        return AckFrame() if self._is_ack_due(now) else None

    def _is_ack_due(self, now: float) -> bool:
        due = self._owe_ack_at
        return self._owed >= ACK_RECORDS or (due is not None and now >= due)

    def stamp(self) -> tuple[int, int]:
        """Return the acknowledgements of a frame that is sent now; nothing is owed then."""
        self._owed, self._owe_ack_at = 0, None
        return self._receiver.next_seq, self._receiver.ack_bits()

    def heard(self, ack: int, ack_bits: int, sent_until: int, now: float) -> None:
        """Take an acknowledgement; records before `sent_until` were sent.

        Raises `StreamError` for one of a record that was never sent.
        """
        if ack > sent_until:
            raise StreamError("an acknowledgement of records that were never sent")
        done = [seq for seq in self._sent if seq < ack]
        for seq in done:
            self._bytes -= len(self._sent.pop(seq)[0])
            self._progress = now
        self._marked = {seq for seq in self._sent if seq in self._marked or _is_marked(seq, ack, ack_bits)}

    def received(self, is_new: bool, now: float) -> None:
        """Note that a record came: it will be acknowledged, a repeated one and one behind a gap at once."""
        self._owed += 1
        if not is_new or self._receiver.has_gap:
            self._owe_ack_at = now
        elif self._owe_ack_at is None:
            self._owe_ack_at = now + ACK_DELAY_S

    def ask_again(self) -> None:
        """Do nothing: what was dropped for lack of room comes again by itself."""

    def heard_at(self, now: float) -> float:
        """Return since when the peer owes an acknowledgement; `now` if it owes none."""
        return self._progress if self._sent else now

    def deadline(self) -> float | None:
        """Return the time of the next `tick`, None if nothing is due."""
        due = [] if self._owe_ack_at is None else [self._owe_ack_at]
        waiting = [at for seq, (_, at) in self._sent.items() if seq not in self._marked]
        if waiting:
            due.append(min(waiting) + AGAIN_S + LOOK_S)
        if self._sent:
            due.append(self._progress + SILENCE_S)
        return min(due, default=None)

    def tick(self, now: float) -> None:
        """Do what is due by `now`.  Raises `StreamError` when nothing was acknowledged for 20 s."""
        if self._sent and now >= self._progress + SILENCE_S:
            raise StreamError(f"the peer has acknowledged nothing for {SILENCE_S:g} s")
        late = [seq for seq, (_, at) in self._sent.items() if now >= at + AGAIN_S and seq not in self._marked]
        for seq in late:
            self._sent[seq] = (self._sent[seq][0], now)
        self._again = sorted({*self._again, *late})


def from_peer(frame: RelayFrame) -> RelayFrame:
    """Return a frame of such a peer in the numbers that are used here.  Raises `StreamError`."""
    if frame.ack_bits & 1:
        raise StreamError("an acknowledgement that marks what it says is missing")
    body = frame.body
    if isinstance(body, Data):
        if not body.seq:
            raise StreamError("a record with the number 0 among those from 1 on")
        body = body._replace(seq=body.seq - 1)
    return frame._replace(body=body, ack_bits=frame.ack_bits >> 1)


def to_peer(seq: int, ack_bits: int) -> tuple[int, int]:
    """Return a record's number and the `ack_bits` of its frame in the numbers of such a peer."""
    return seq + 1, ack_bits << 1 & _BITS


def _is_marked(seq: int, ack: int, ack_bits: int) -> bool:
    return 0 <= seq - ack - 1 < 32 and bool(ack_bits >> (seq - ack - 1) & 1)
