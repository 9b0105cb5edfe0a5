"""Records: messages in and out, whatever the network does to them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.wire import noise_records
from execserver.wire.noise_records import (
    MAX_JSON_BYTES,
    RecordReceiver,
    RecordSender,
    StreamError,
    Window,
)
from execserver.wire.noise_state import TransportCipher
from execserver.wire.relay_frames import MAX_SEQ

KEY = bytearray(range(32))


def ends(window: Window = noise_records.PLAIN_WINDOW) -> tuple[RecordSender, RecordReceiver]:
    return RecordSender(TransportCipher(KEY)), RecordReceiver(TransportCipher(KEY), window)


def raw(counter: int, plaintext: bytes) -> bytes:
    """Return a record no sender of ours would make."""
    cipher = TransportCipher(KEY)
    cipher.counter = counter
    return cipher.encrypt(plaintext)


@pytest.mark.parametrize("size", [1, 4, 61435, 61436, 61437, 122876, 122877, 1_000_000])
def test_a_message_of_any_size_arrives(size: int) -> None:
    sender, receiver = ends()
    message = random.Random(size).randbytes(size)
    records = sender.seal(message)
    assert [seq for seq, _ in records] == list(range(-(-(size + 4) // 61440)))
    assert max(len(record) for _, record in records) <= 61456
    assert [found for record in records for found in receiver.feed(*record)] == [message]


def test_each_message_is_framed_by_itself() -> None:
    sender, _ = ends()
    assert [seq for message in (b"a", b"b") for seq, _ in sender.seal(message)] == [0, 1]


def test_a_receiver_takes_any_cut() -> None:
    _, receiver = ends()
    stream = b"\0\0\0\x02ab\0\0\0\x01c\0\0\0\x03def"
    pieces = [stream[:2], stream[2:5], stream[5:12], stream[12:]]
    found = [receiver.feed(seq, raw(seq, piece)) for seq, piece in enumerate(pieces)]
    assert found == [[], [], [b"ab", b"c"], [b"def"]]


def test_records_wait_for_the_missing_one() -> None:
    sender, receiver = ends()
    records = [record for text in b"abcd" for record in sender.seal(bytes((text,)))]
    assert receiver.feed(*records[2]) == []
    assert receiver.feed(*records[1]) == []
    assert (receiver.next_seq, receiver.ack_bits(), receiver.has_gap) == (0, 0b11, True)
    assert receiver.feed(*records[0]) == [b"a", b"b", b"c"]
    assert (receiver.next_seq, receiver.ack_bits(), receiver.has_gap) == (3, 0, False)
    assert receiver.feed(*records[1]) == []
    assert receiver.feed(*records[3]) == [b"d"]


def test_the_first_copy_of_a_waiting_record_counts() -> None:
    sender, receiver = ends()
    records = [record for text in b"ab" for record in sender.seal(bytes((text,)))]
    assert receiver.feed(*records[1]) == []
    assert receiver.feed(1, bytes(30)) == []
    assert receiver.feed(*records[0]) == [b"a", b"b"]


@pytest.mark.parametrize(("ahead", "fits"), [(64, True), (65, False)])
def test_the_window_is_64_records(ahead: int, fits: bool) -> None:
    _, receiver = ends()
    if fits:
        assert receiver.feed(ahead, bytes(16)) == []
        return
    with pytest.raises(StreamError, match="too far ahead"):
        receiver.feed(ahead, bytes(16))


def test_the_window_is_a_mebibyte() -> None:
    _, receiver = ends()
    for seq in range(1, 17):
        receiver.feed(seq, bytes(65535))
    receiver.feed(17, bytes(16))
    with pytest.raises(StreamError, match="too far ahead"):
        receiver.feed(18, bytes(16))


def test_a_window_that_drops_forgets_what_lies_beyond() -> None:
    sender, receiver = ends(Window(2, 1000, drops=True))
    records = [record for text in b"abcd" for record in sender.seal(bytes((text,)))]
    assert receiver.feed(*records[3]) == []
    assert receiver.feed(2, bytes(1001)) == []
    assert receiver.ack_bits() == 0
    assert [receiver.feed(*record) for record in records] == [[b"a"], [b"b"], [b"c"], [b"d"]]


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (bytes(15), "a record of 15 bytes"),
        (bytes(65536), "a record of 65536 bytes"),
        (bytes(100), "cannot be decrypted"),
        (raw(0, b"\0\0\0\0"), "a message of 0 bytes"),
        (raw(0, (MAX_JSON_BYTES + 1).to_bytes(4, "big")), "a message of 67108865 bytes"),
        (raw(0, bytes(61441)), "a record with 61441 bytes of content"),
    ],
)
def test_a_broken_record_ends_the_stream(record: bytes, text: str) -> None:
    with pytest.raises(StreamError, match=text):
        ends()[1].feed(0, record)


def test_the_longest_message_is_announced_without_taking_its_memory() -> None:
    _, receiver = ends()
    assert receiver.feed(0, raw(0, MAX_JSON_BYTES.to_bytes(4, "big"))) == []


def test_a_message_that_is_too_long_or_empty_is_not_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_records, "MAX_JSON_BYTES", 10)
    sender, _ = ends()
    assert len(sender.seal(bytes(10))) == 1
    for message in (b"", bytes(11)):
        with pytest.raises(StreamError):
            sender.seal(message)


def test_numbers_end_and_never_wrap() -> None:
    sending, receiving = TransportCipher(KEY), TransportCipher(KEY)
    sending.counter = receiving.counter = MAX_SEQ - 1
    sender, receiver = RecordSender(sending), RecordReceiver(receiving)
    (record,) = sender.seal(b"x")
    assert receiver.feed(*record) == [b"x"]
    with pytest.raises(StreamError, match="used up"):
        sender.seal(b"y")
    with pytest.raises(StreamError, match="used up"):
        receiver.feed(MAX_SEQ, bytes(16))


MESSAGES = st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=30)


@given(MESSAGES, st.randoms(use_true_random=False), st.integers(0, 3))
def test_reordered_and_repeated_records_arrive_once_and_in_order(
    messages: list[bytes], rng: random.Random, copies: int
) -> None:
    sender, receiver = ends()
    records = [record for message in messages for record in sender.seal(message)]
    sent = records + [rng.choice(records) for _ in range(copies)]
    rng.shuffle(sent)
    found = [message for record in sent for message in receiver.feed(*record)]
    assert found == messages


@given(MESSAGES, st.randoms(use_true_random=False))
def test_a_damaged_stream_ends_and_never_yields_a_wrong_byte(
    messages: list[bytes], rng: random.Random
) -> None:
    sender, receiver = ends()
    records = [record for message in messages for record in sender.seal(message)]
    hurt = rng.randrange(len(records))
    found: list[bytes] = []
    try:
        for index, (seq, record) in enumerate(records):
            found += receiver.feed(*((seq, record) if index != hurt else damaged(rng, seq, record)))
    except StreamError:
        pass
    assert found == messages[: len(found)]
    assert len(found) < len(messages) or found == messages


def damaged(rng: random.Random, seq: int, record: bytes) -> tuple[int, bytes]:
    kind = rng.randrange(4)
    if kind == 0:
        changed = bytearray(record)
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        return seq, bytes(changed)
    if kind == 1:
        return seq, record[: rng.randrange(len(record))]
    if kind == 2:
        return seq, record + b"\0"
    return seq + rng.randint(1, 100), record


@given(MESSAGES, st.randoms(use_true_random=False))
def test_messages_do_not_depend_on_where_the_stream_is_cut(messages: list[bytes], rng: random.Random) -> None:
    _, receiver = ends()
    stream = b"".join(len(message).to_bytes(4, "big") + message for message in messages)
    found, at, seq = [], 0, 0
    while at < len(stream):
        size = rng.choice([1, 2, 3, 4, 5, 50, 500, 61440])
        found += receiver.feed(seq, raw(seq, stream[at : at + size]))
        at, seq = at + size, seq + 1
    assert found == messages
