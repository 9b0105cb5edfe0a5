"""The short ways of received bytes lead where the general ones lead: both get the same 10,000 messages."""

from __future__ import annotations

import random

from websockets.speedups import apply_mask

from execserver.wire.client_frames import BINARY_MESSAGE, ClientFrames
from execserver.wire.noise_records import MAX_PLAINTEXT_BYTES, RecordReceiver, RecordSender
from execserver.wire.noise_state import TransportCipher
from execserver.wire.relay_frames import (
    InvalidFrame,
    RelayFrame,
    _canonical_record,
    _decode_any,
    encode_data,
    frame_head,
)
from execserver.wire.websocket import FrameLimits, ServerFrames

COUNT = 10_000
NUMBERS = (0, 1, 127, 128, 300, 16_383, 16_384, 70_000, 2**31, 2**32 - 1)
SIZES = (0, 1, 2, 3, 100, 125, 126, 127, 128, 300, 65_535, 65_536)


def general(data: bytes) -> RelayFrame | None:
    try:
        return _decode_any(data)
    except InvalidFrame:
        return None


def test_records_are_read_alike() -> None:
    chance = random.Random(7)
    short_ones = 0
    for _ in range(COUNT):
        head = frame_head(chance.choice(["b" * 36, " " * 36, "é" * 18, "b" * 35]))
        payload = chance.randbytes(chance.choice([0, 1, 60, 127, 128, 400]))
        numbers = [chance.choice(NUMBERS) for _ in range(3)]
        data = bytearray(encode_data(head, numbers[0], payload, *numbers[1:]))
        for _ in range(chance.choice([0, 0, 1, 2])):
            at = chance.randrange(len(data))
            if chance.random() < 0.3:
                del data[at:]
            elif chance.random() < 0.3:
                data.insert(at, chance.randrange(256))
            else:
                data[at] = chance.randrange(256)
            data = data or bytearray(b"\0")
        short = _canonical_record(bytes(data))
        if short is not None:
            assert short == general(bytes(data))
            short_ones += 1
    assert short_ones > COUNT // 10


class Taken:
    """What one way finds; frames that are not messages are noted with their bytes."""

    def __init__(self) -> None:
        self.found: list[tuple[str, bytes]] = []
        self.frames = ClientFrames(BINARY_MESSAGE, 70_000, self._message, self._other)

    def _message(self, message: bytes) -> None:
        self.found.append(("message", message))

    def _other(self, data: bytes) -> bool:
        if self.found and self.found[-1][0] == "other":
            data = self.found.pop()[1] + data  # in how many pieces they come is nobody's concern
        self.found.append(("other", data))
        return True


class InGeneral(ClientFrames):
    """Knows no short way."""

    def _take_short(self, end: int) -> int:
        return 0


def test_messages_of_a_relay_are_cut_alike() -> None:
    chance = random.Random(8)
    for _ in range(COUNT // 20):
        quick, slow = Taken(), Taken()
        slow.frames = InGeneral(BINARY_MESSAGE, 70_000, slow._message, slow._other)
        for _ in range(20):
            lead = chance.choice([0x82] * 12 + [0x81, 0x02, 0x00, 0x80, 0x89, 0xC2])
            size = chance.choice(SIZES[:-2] * 5 + SIZES)
            head = bytes((size,)) if size < 126 else b"\x7e" + (size & 0xFFFF).to_bytes(2, "big")
            if size > 65_535 or chance.random() < 0.05:
                head = b"\x7f" + size.to_bytes(8, "big")  # also where a shorter one would do
            if chance.random() < 0.03:
                head = bytes((head[0] | 0x80,)) + head[1:] + bytes(4)
            data = bytes((lead,)) + head + bytes(size)
            at = 0
            while at < len(data):  # reads end anywhere
                piece = data[at : at + chance.choice([len(data), len(data), 1, 2, 3, 5, 1000])]
                for each in (quick, slow):
                    each.frames.take(piece)
                at += len(piece)
        assert quick.found == slow.found


def test_short_messages_are_sealed_alike() -> None:
    chance = random.Random(9)
    key = bytearray(range(32))
    short, general = RecordSender(TransportCipher(key)), RecordSender(TransportCipher(key))
    receiver = RecordReceiver(TransportCipher(key))
    most = MAX_PLAINTEXT_BYTES - 4
    for number in range(COUNT // 10):
        message = chance.randbytes(chance.choice([1, 2, 100, 1000] if number % 50 else [most, most + 1]))
        record = short.seal_short(message)
        records = list(short.pieces(message)) if record is None else [record]
        assert records == general.seal(message)
        assert [each for one in records for each in receiver.feed(*one)] == [message]
        assert (record is None) == (len(message) > most)
    assert short.seal_short(b"") is None


def client_frame(chance: random.Random) -> bytes:
    """Return a frame as a client sends it, or nearly one."""
    texts = [b"", b"{}", b"a" * 125, b"a" * 126, b"\xc3\xa9" * 40, b"\xff\xfe", b"x" * 60_000, b"x" * 65_535]
    payload = chance.choice([*texts, chance.randbytes(20)])
    size = len(payload)
    head = bytes((0x80 | size,)) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
    if chance.random() < 0.1:
        head = b"\xfe" + size.to_bytes(2, "big")  # also where a shorter one would do
    elif chance.random() < 0.1:
        head = b"\xff" + size.to_bytes(8, "big")
    lead = chance.choice([0x81] * 40 + [0x82] * 8 + [0x01, 0x80, 0x00, 0x88, 0x89, 0x8A, 0xC1, 0x83])
    mask = chance.randbytes(4)
    data = bytearray(bytes((lead,)) + head + mask + apply_mask(payload, mask))
    if chance.random() < 0.05:
        data[chance.randrange(2)] = chance.randrange(256)
    return bytes(data)


def test_lone_messages_of_a_client_are_found_as_among_others() -> None:
    chance = random.Random(10)
    limits = FrameLimits(61_000, 62_000, 4)
    buffer = bytearray(140_000)  # of which the end still has what was read before
    alone = 0
    for _ in range(COUNT // 4):
        quick, slow = ServerFrames(limits), ServerFrames(limits)
        for _ in range(4):
            data = client_frame(chance)
            data = data[: chance.choice([len(data)] * 20 + [1, 7, len(data) - 1])]
            data += client_frame(chance) if chance.random() < 0.1 else b""
            buffer[: len(data)] = data
            message = quick.lone(buffer, len(data))
            alone += message is not None
            found = quick.feed(data) if message is None else [message]
            assert found == slow.feed(data)
            one, other = ((each.finished, each.failure, each.control) for each in (quick, slow))
            assert one == other
    assert COUNT // 10 < alone < COUNT * 9 // 10
