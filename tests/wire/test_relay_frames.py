"""Relay frames: what is encoded, what is understood, what is refused."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.wire.relay_frames import (
    MAX_FRAME_BYTES,
    AckFrame,
    Body,
    Data,
    Handshake,
    Heartbeat,
    InvalidFrame,
    RelayFrame,
    Reset,
    Resume,
    _canonical_begin,
    _canonical_handshake,
    _canonical_record,
    _decode_any,
    decode_frame,
    encode_data,
    encode_frame,
    frame_head,
    peek_stream_id,
)
from tests.conftest import LONG
from tests.wire.noise_vectors import octets, vectors

U32 = st.integers(0, 2**32 - 1)
BODIES: st.SearchStrategy[Body] = st.one_of(
    st.builds(Data, U32, st.binary(min_size=1, max_size=300), st.just(0), st.just(1)),
    st.builds(AckFrame),
    st.builds(Resume, U32),
    st.builds(Reset, st.text(min_size=1, max_size=40)),
    st.builds(Heartbeat),
    st.builds(Handshake, st.binary(min_size=1, max_size=300)),
)
FRAMES = st.builds(
    RelayFrame, st.text(min_size=1, max_size=40).filter(lambda text: text.strip() != ""), BODIES, U32, U32
)
HEAD = b"\x08\x01\x12\x01s"


def expected_body(kind: str, fields: dict[str, object]) -> Body:
    if kind == "data":
        return Data(int(str(fields.get("seq", 0))), octets_of(fields["payload"]), 0, 1)
    if kind == "handshake":
        return Handshake(octets_of(fields["payload"]))
    if kind == "reset":
        return Reset(str(fields["reason"]))
    if kind == "resume":
        return Resume(int(str(fields.get("next_seq", 0))))
    return AckFrame() if kind == "ack_frame" else Heartbeat()


def octets_of(reference: object) -> bytes:
    """Return what a vector's payload names: `records[0].ciphertext`, `handshake.message1`, or hex."""
    text = str(reference)
    if text.startswith("records["):
        index = int(text[len("records[") : text.index("]")])
        return bytes.fromhex(vectors()["records"][index]["ciphertext"])
    if "." in text:
        return octets(*text.split("."))
    return bytes.fromhex(text)


@pytest.mark.parametrize("vector", vectors()["frames"], ids=lambda vector: str(vector["what"]))
def test_known_frames_are_understood_and_made_again(vector: dict[str, object]) -> None:
    data = bytes.fromhex(str(vector["hex"]))
    fields = vector["fields"]
    assert isinstance(fields, dict)
    kind = str(vector["body"])
    frame = RelayFrame(
        fields["stream_id"],
        expected_body(kind, fields[kind]),
        fields.get("ack", 0),
        fields.get("ack_bits", 0),
    )
    assert decode_frame(data) == frame
    assert encode_frame(frame) == data
    assert peek_stream_id(data) == frame.stream_id


@given(FRAMES)
def test_what_is_encoded_is_decoded(frame: RelayFrame) -> None:
    data = encode_frame(frame)
    assert decode_frame(data) == frame
    assert peek_stream_id(data) == frame.stream_id


IDS = st.one_of(
    st.uuids().map(str), st.text("ab \t\x85é", min_size=36, max_size=36), st.text(min_size=1, max_size=40)
)


@given(IDS, U32, st.binary(max_size=300), U32, U32, st.randoms(use_true_random=False))
def test_the_short_way_of_records_leads_to_the_same_result(
    stream_id: str, seq: int, payload: bytes, ack: int, bits: int, rng: random.Random
) -> None:
    data = encode_data(frame_head(stream_id), seq, payload, ack, bits)
    if payload and stream_id.strip():
        assert data == encode_frame(RelayFrame(stream_id, Data(seq, payload), ack, bits))
    for form in (data, mutated(rng, data)):
        short = _canonical_record(form)
        if short is not None:
            assert short == _decode_any(form)
    if payload and stream_id.isascii() and len(stream_id) == 36 and stream_id.strip():
        assert _canonical_record(data) is not None


@given(IDS, st.binary(min_size=1, max_size=300), st.randoms(use_true_random=False))
def test_the_short_way_of_handshakes_leads_to_the_same_result(
    stream_id: str, payload: bytes, rng: random.Random
) -> None:
    if not stream_id.strip():
        return
    data = encode_frame(RelayFrame(stream_id, Handshake(payload)))
    for form in (data, mutated(rng, data)):
        short = _canonical_handshake(form)
        if short is not None:
            assert short == _decode_any(form)
    if stream_id.isascii() and len(stream_id) == 36:
        assert _canonical_handshake(data) is not None


@given(IDS, U32, st.randoms(use_true_random=False))
def test_the_short_way_of_the_first_frame_leads_to_the_same_result(
    stream_id: str, next_seq: int, rng: random.Random
) -> None:
    if not stream_id.strip():
        return
    for data in (encode_frame(RelayFrame(stream_id, Resume(seq))) for seq in (0, next_seq)):
        for form in (data, mutated(rng, data)):
            short = _canonical_begin(form)
            if short is not None:
                assert short == _decode_any(form)
    if stream_id.isascii() and len(stream_id) == 36:
        assert _canonical_begin(encode_frame(RelayFrame(stream_id, Resume()))) is not None


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "not version 1"),
        (b"\x12\x01s2\x00", "not version 1"),
        (b"\x08\x02\x12\x01s2\x00", "not version 1"),
        (b"\x08\x012\x00", "blank stream id"),
        (b"\x08\x01\x12\x02 \t2\x00", "blank stream id"),
        (b"\x08\x01\x12\x03\xe2\x80\x832\x00", "blank stream id"),
        (HEAD, "no body"),
        (HEAD + b"*\x04\x18\x01\x22\x00", "data without payload"),
        (HEAD + b"*\x03\x22\x01x", "a record in several segments"),
        (HEAD + b"*\x05\x18\x02\x22\x01x", "a record in several segments"),
        (HEAD + b"*\x07\x10\x01\x18\x01\x22\x01x", "a record in several segments"),
        (HEAD + b"B\x00", "reset without reason"),
        (HEAD + b"R\x00", "handshake without payload"),
        (HEAD + b"B\x03\x0a\x01\xff", "field 1 is not UTF-8"),
        (b"\x08\x01\x12\x01\xff2\x00", "field 2 is not UTF-8"),
        (HEAD + b"2\x05", "cut off"),
        (HEAD + b"2", "a number is cut off or too long"),
        (HEAD + b"\x18" + b"\xff" * 10 + b"2\x00", "a number is cut off or too long"),
        (HEAD + b"\x1a\x00" + b"2\x00", "field 3 has the wrong wire type"),
        (HEAD + b"0\x00", "field 6 has the wrong wire type"),
        (HEAD + b"\x00\x00" + b"2\x00", "a field number that cannot be"),
        (HEAD + b"\x7c" + b"2\x00", "a field of a wire type that cannot be"),
        (HEAD + b"\x7f" + b"2\x00", "a field of a wire type that cannot be"),
        (HEAD + b"2\x00" + bytes(MAX_FRAME_BYTES), "longer than 262144 bytes"),
    ],
)
def test_invalid_frames_are_refused(data: bytes, text: str) -> None:
    with pytest.raises(InvalidFrame, match=text):
        decode_frame(data)


@pytest.mark.parametrize(
    "frame",
    [
        RelayFrame(" \u3000", AckFrame()),
        RelayFrame("s", Data(0, b"")),
        RelayFrame("s", Data(0, b"x", 1, 2)),
        RelayFrame("s", Data(2**32, b"x")),
        RelayFrame("s", Data(-1, b"x")),
        RelayFrame("s", Reset("")),
        RelayFrame("s", Handshake(b"")),
        RelayFrame("s", AckFrame(), ack=2**32),
    ],
)
def test_invalid_frames_are_not_made(frame: RelayFrame) -> None:
    with pytest.raises(InvalidFrame):
        encode_frame(frame)


@pytest.mark.parametrize(
    "unknown",
    [
        b"\x58\x07",  # field 11, a number
        b"\x59" + bytes(8),  # field 11, 64 bits
        b"\x5a\x03abc",  # field 11, bytes
        b"\x5d" + bytes(4),  # field 11, 32 bits
        b"\x5b\x08\x01\x5c",  # field 11, a group
        b"\x5b\x63\x64\x5c",  # a group in a group
    ],
)
def test_unknown_fields_are_skipped_everywhere(unknown: bytes) -> None:
    inner = unknown + b"\x18\x01" + unknown + b"\x22\x01x"
    data = unknown + HEAD + unknown + b"*" + bytes((len(inner),)) + inner + unknown
    assert decode_frame(data) == RelayFrame("s", Data(0, b"x"))
    assert peek_stream_id(data) == "s"


def test_the_last_of_a_repeated_field_counts_for_both_readers() -> None:
    data = HEAD + b"\x12\x01t" + b"2\x00"
    assert decode_frame(data).stream_id == "t"
    assert peek_stream_id(data) == "t"


def test_pieces_of_one_body_are_merged_and_another_body_replaces_them() -> None:
    merged = HEAD + b"*\x04\x18\x01\x08\x05" + b"*\x03\x22\x01x"
    assert decode_frame(merged).body == Data(5, b"x")
    assert decode_frame(HEAD + b"*\x05\x18\x01\x22\x01x" + b"J\x00").body == Heartbeat()


def test_numbers_are_cut_to_32_bits_like_every_reader_does() -> None:
    assert decode_frame(HEAD + b"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01" + b"2\x00").ack == 2**32 - 1


def test_deep_groups_do_not_exhaust_the_stack() -> None:
    with pytest.raises(InvalidFrame):
        decode_frame(HEAD + b"\x5b" * 100_000 + b"2\x00")


def mutated(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        kind = rng.randrange(4)
        at = rng.randrange(len(changed) + 1)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del changed[at:]
        elif kind == 2:
            changed[at:at] = rng.randbytes(rng.randint(1, 8))
        else:
            del changed[at : at + rng.randint(1, 8)]
    return bytes(changed)


def test_mutated_frames_are_understood_or_refused() -> None:
    rng = random.Random(5)
    originals = [bytes.fromhex(vector["hex"]) for vector in vectors()["frames"]]
    for _ in range(10_000 if LONG else 1_000):
        data = mutated(rng, rng.choice(originals))
        try:
            frame = decode_frame(data)
        except InvalidFrame:
            continue
        assert peek_stream_id(data) == frame.stream_id
        assert decode_frame(encode_frame(frame)) == frame
