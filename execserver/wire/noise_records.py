"""Noise records of an open stream: JSON messages as sealed, numbered pieces, and back.

The plaintext of one direction is a byte stream of messages, each after its length (4 bytes, big-endian).  A
sender cuts each message by itself; a receiver accepts any cut.  Records may come in any order: within the
window they wait for the missing one.  Any error ends the stream: `StreamError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidTag

from execserver.wire.noise import MAX_MESSAGE_BYTES, TAG_BYTES, TransportCipher
from execserver.wire.relay_frames import MAX_SEQ

MAX_RECORD_BYTES: Final = MAX_MESSAGE_BYTES
MAX_PLAINTEXT_BYTES: Final = 61440
"""What one record carries at most."""

# The reference resets a stream at a longer message, in either direction.
MAX_JSON_BYTES: Final = 64 * 1024 * 1024
ACK_BITS: Final = 32
_LENGTH_BYTES: Final = 4
_PART_BYTES: Final = 4096  # smaller parts of a message are put together: no peer makes us keep thousands


class StreamError(Exception):
    """The stream cannot go on; the text says why, and contains nothing of what was sent."""


class Window(NamedTuple):
    """How far ahead of the next expected record others may wait, in records and ciphertext bytes.

    With `drops`, a record beyond is ignored: the peer sends it again.  Without, it ends the stream.
    """

    records: int
    ciphertext_bytes: int
    drops: bool = False


# The reference's own limits: 65 ahead is an error there, too.
PLAIN_WINDOW: Final = Window(64, 1024 * 1024)


class RecordSender:
    """Seals messages.  A record is sealed once: to send it again, the caller must have kept it.

    Sealing twice would use one nonce for two texts, which gives AES-GCM's authentication key away.
    """

    __slots__ = ("_cipher",)

    def __init__(self, cipher: TransportCipher) -> None:
        self._cipher = cipher

    @property
    def next_seq(self) -> int:
        """The number of the next record."""
        return self._cipher.counter

    def seal(self, message: bytes) -> list[tuple[int, bytes]]:
        """Return the records of one message with their sequence numbers.  Raises `StreamError`."""
        return list(self.pieces(message))

    def seal_short(self, message: bytes) -> tuple[int, bytes] | None:
        """Seal a message that fits into one record, as nearly all do; None, and nothing done, for others.

        It is the one item of `pieces`.  Raises `StreamError` when the numbers are used up.
        """
        if not 0 < len(message) <= MAX_PLAINTEXT_BYTES - _LENGTH_BYTES:
            return None
        return self._seal(len(message).to_bytes(_LENGTH_BYTES, "big") + message)

    def pieces(self, message: bytes) -> Iterator[tuple[int, bytes]]:
        """Seal one message lazily, record by record; no other message may be sealed meanwhile.

        Each item is (sequence number, record).  Raises `StreamError` when the message is empty or too long,
        or the numbers are used up.
        """
        if not 0 < len(message) <= MAX_JSON_BYTES:
            raise StreamError(f"a message of {len(message)} bytes")
        # The length shares the first record with the message, as at the reference: pieces of 61,440 bytes.
        first = MAX_PLAINTEXT_BYTES - _LENGTH_BYTES
        rest = memoryview(message)
        yield self._seal(b"".join((len(message).to_bytes(_LENGTH_BYTES, "big"), rest[:first])))
        for start in range(first, len(message), MAX_PLAINTEXT_BYTES):
            yield self._seal(rest[start : start + MAX_PLAINTEXT_BYTES])

    def _seal(self, plaintext: bytes | memoryview) -> tuple[int, bytes]:
        seq = self._cipher.counter
        # The number is the nonce, so it never wraps.
        if seq >= MAX_SEQ:
            raise StreamError("the sequence numbers are used up")
        return seq, self._cipher.encrypt(plaintext)


class RecordReceiver:
    """Orders, decrypts and joins records; holds at most the window and one unfinished message."""

    __slots__ = ("_cipher", "_message", "_waiting", "_waiting_bytes", "window")

    def __init__(self, cipher: TransportCipher, window: Window = PLAIN_WINDOW) -> None:
        self.window = window
        self._cipher = cipher
        self._waiting: dict[int, bytes] = {}
        self._waiting_bytes = 0
        self._message = _Joiner()

    @property
    def next_seq(self) -> int:
        """The number of the record that must come next."""
        return self._cipher.counter

    @property
    def has_gap(self) -> bool:
        """True while records wait for one that is missing."""
        return bool(self._waiting)

    def opens_as_next(self, record: bytes) -> bool:
        """Return whether a record was sealed as the one that comes next; nothing is taken."""
        if not TAG_BYTES <= len(record) <= MAX_RECORD_BYTES:
            return False
        try:
            self._cipher.decrypt(record)
        except InvalidTag:
            return False
        self._cipher.counter -= 1  # it is decrypted again when it is taken
        return True

    def ack_bits(self) -> int:
        """Return which of the 32 records after the next one have arrived: bit 0 is `next_seq + 1`."""
        if not self._waiting:
            return 0
        first = self.next_seq + 1
        return sum(1 << bit for bit in range(ACK_BITS) if first + bit in self._waiting)

    def feed(self, seq: int, record: bytes) -> list[bytes]:
        """Take one record; return the messages that are complete now, in order.  Raises `StreamError`.

        A repeated record is ignored: the first copy counts, as at the reference.
        """
        ahead = seq - self.next_seq
        # Before all other checks: a copy of a known record ends nothing, even if it is a bad one.
        if ahead < 0 or seq in self._waiting:
            return []
        if not TAG_BYTES <= len(record) <= MAX_RECORD_BYTES:
            raise StreamError(f"a record of {len(record)} bytes")
        # A record can be decrypted only in its turn: the cipher's counter is its nonce.
        if ahead:
            self._keep(seq, record, ahead)
            return []
        messages = self._message.feed(self._open(record))
        while self._waiting and (waiting := self._waiting.pop(self.next_seq, None)) is not None:
            self._waiting_bytes -= len(waiting)
            messages += self._message.feed(self._open(waiting))
        return messages

    def _keep(self, seq: int, record: bytes, ahead: int) -> None:
        window = self.window
        size = self._waiting_bytes + len(record)
        if ahead > window.records or size > window.ciphertext_bytes:
            if window.drops:
                return
            raise StreamError("a record too far ahead of the next one")
        self._waiting[seq] = record
        self._waiting_bytes = size

    def _open(self, record: bytes) -> bytes:
        if self._cipher.counter >= MAX_SEQ:
            raise StreamError("the sequence numbers are used up")
        try:
            plaintext = self._cipher.decrypt(record)
        # A reliable stream ends, too: a relay that forges records could as well drop them.
        except InvalidTag:
            raise StreamError("a record cannot be decrypted") from None
        # A record of 65,535 bytes could hold more; the contract allows 60 KiB of plaintext.
        if len(plaintext) > MAX_PLAINTEXT_BYTES:
            raise StreamError(f"a record with {len(plaintext)} bytes of content")
        return plaintext


class _Joiner:
    """Cuts the byte stream at the message boundaries."""

    __slots__ = ("_lead", "_missing", "_parts")

    def __init__(self) -> None:
        self._lead = b""  # of a length that is not complete
        self._missing = 0  # bytes of the message that has begun
        self._parts: list[memoryview | bytearray] = []

    def feed(self, data: bytes) -> list[bytes]:
        messages: list[bytes] = []
        at, end = 0, len(data)
        while at < end:
            if not self._missing:
                begun = self._lead + data[at : at + _LENGTH_BYTES - len(self._lead)]
                at += len(begun) - len(self._lead)
                self._begin(begun)
            # A message in one record, as nearly all are: one copy.
            elif not self._parts and end - at >= self._missing:
                messages.append(data[at : at + self._missing])
                at += self._missing
                self._missing = 0
            else:
                at += self._extend(memoryview(data)[at : at + self._missing], messages)
        return messages

    def _begin(self, lead: bytes) -> None:
        if len(lead) < _LENGTH_BYTES:
            self._lead = lead
            return
        self._lead = b""
        self._missing = int.from_bytes(lead, "big")
        # Checked before anything is kept: this is all that bounds the memory of an unfinished message.
        if not 0 < self._missing <= MAX_JSON_BYTES:
            raise StreamError(f"a message of {self._missing} bytes")

    def _extend(self, part: memoryview, messages: list[bytes]) -> int:
        """Add a part of a message that came in several records; return its size."""
        if len(part) >= _PART_BYTES:
            self._parts.append(part)  # joined with the others at the end, and not copied before
        elif self._parts and isinstance(self._parts[-1], bytearray):
            self._parts[-1] += part
        else:
            self._parts.append(bytearray(part))
        self._missing -= len(part)
        if not self._missing:
            messages.append(b"".join(self._parts))
            self._parts = []
        return len(part)
