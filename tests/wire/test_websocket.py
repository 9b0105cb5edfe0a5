"""What the server makes of a peer's WebSocket frames."""

from __future__ import annotations

import os
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from execserver.wire.close_codes import INVALID_DATA, MESSAGE_TOO_BIG, POLICY_VIOLATION, PROTOCOL_ERROR
from execserver.wire.websocket import FrameLimits, ServerFrames, frame_header

LIMITS = FrameLimits(frame_bytes=1000, message_bytes=3000, fragments=8)


def frame(opcode: Opcode, data: bytes, *, fin: bool = True, mask: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=mask)


def text(data: bytes, *, fin: bool = True) -> bytes:
    return frame(Opcode.TEXT, data, fin=fin)


def more(data: bytes, *, fin: bool = False) -> bytes:
    return frame(Opcode.CONT, data, fin=fin)


def close_code(frames: ServerFrames) -> int:
    (control,) = frames.control
    assert control[0] == 0x88
    return int.from_bytes(control[2:4], "big")


def test_text_and_binary_messages_are_taken_alike() -> None:
    frames = ServerFrames(LIMITS)
    assert frames.feed(text(b"one") + frame(Opcode.BINARY, b"two")) == [b"one", b"two"]


def test_fragments_are_joined_and_control_frames_may_stand_between_them() -> None:
    frames = ServerFrames(LIMITS)
    data = text(b"a", fin=False) + frame(Opcode.PING, b"p") + more(b"b") + more(b"c", fin=True)
    assert frames.feed(data) == [b"abc"]
    assert frames.control == [b"\x8a\x01p"]


def test_a_frame_at_the_limit_passes_and_one_byte_more_ends_with_1009() -> None:
    assert ServerFrames(LIMITS).feed(text(b"x" * 1000)) == [b"x" * 1000]
    frames = ServerFrames(LIMITS)
    assert frames.feed(text(b"x" * 1001)) == []
    assert frames.finished
    assert close_code(frames) == MESSAGE_TOO_BIG


def test_an_announced_length_is_refused_before_its_payload_arrives() -> None:
    frames = ServerFrames(LIMITS)
    frames.feed(b"\x81\xff" + (1 << 40).to_bytes(8, "big"))
    assert close_code(frames) == MESSAGE_TOO_BIG


def test_a_message_at_the_limit_passes_and_one_byte_more_ends_with_1009() -> None:
    whole = text(b"x" * 1000, fin=False) + more(b"x" * 1000)
    assert ServerFrames(LIMITS).feed(whole + more(b"x" * 1000, fin=True)) == [b"x" * 3000]
    frames = ServerFrames(LIMITS)
    frames.feed(whole + more(b"x" * 1000) + more(b"x", fin=True))
    assert close_code(frames) == MESSAGE_TOO_BIG


def test_too_many_fragments_end_with_1009_even_when_they_are_empty() -> None:
    frames = ServerFrames(LIMITS)
    assert frames.feed(text(b"", fin=False) + more(b"") * 8) == []
    assert close_code(frames) == MESSAGE_TOO_BIG
    assert frames.failure == "more than 8 fragments in one message"


def test_as_many_fragments_as_allowed_pass() -> None:
    data = text(b"a", fin=False) + more(b"a") * 6 + more(b"a", fin=True)
    assert ServerFrames(LIMITS).feed(data) == [b"a" * 8]


def test_text_that_is_not_utf8_ends_with_1007_and_the_same_bytes_as_binary_pass() -> None:
    frames = ServerFrames(LIMITS)
    assert frames.feed(text(b"\xff\xfe")) == []
    assert close_code(frames) == INVALID_DATA
    assert ServerFrames(LIMITS).feed(frame(Opcode.BINARY, b"\xff\xfe")) == [b"\xff\xfe"]


def test_a_character_may_be_cut_between_fragments() -> None:
    data = "é".encode()
    assert ServerFrames(LIMITS).feed(text(data[:1], fin=False) + more(data[1:], fin=True)) == [data]


@pytest.mark.parametrize(
    "data",
    [
        frame(Opcode.TEXT, b"x", mask=False),
        b"\xc1\x80\0\0\0\0",  # a reserved bit
        b"\x83\x80\0\0\0\0",  # an unknown opcode
        more(b"x", fin=True),
        text(b"x", fin=False) + text(b"y"),
        b"\x09\x80\0\0\0\0",  # a fragmented ping
    ],
)
def test_broken_frames_end_with_1002(data: bytes) -> None:
    frames = ServerFrames(LIMITS)
    assert frames.feed(data) == []
    assert frames.finished
    assert close_code(frames) == PROTOCOL_ERROR
    assert frames.failure


def test_a_close_is_echoed_and_messages_before_it_are_kept() -> None:
    frames = ServerFrames(LIMITS)
    assert frames.feed(text(b"last") + frame(Opcode.CLOSE, b"\x03\xe8bye") + text(b"late")) == [b"last"]
    assert frames.finished
    assert frames.failure is None
    assert frames.control == [b"\x88\x05\x03\xe8bye"]
    assert frames.feed(text(b"more")) == []


def test_our_close_carries_code_and_reason_cut_to_a_control_frame() -> None:
    frames = ServerFrames(LIMITS)
    frames.close(POLICY_VIOLATION, "é" * 100)
    (control,) = frames.control
    assert close_code(frames) == POLICY_VIOLATION
    assert len(control) <= 2 + 125
    assert control[4:].decode() == "é" * 61


def test_closing_after_the_peer_closed_sends_nothing_more() -> None:
    frames = ServerFrames(LIMITS)
    frames.feed(frame(Opcode.CLOSE, b""))
    frames.control.clear()
    frames.close(POLICY_VIOLATION, "too late")
    assert frames.control == []


@given(st.lists(st.binary(max_size=200), max_size=6), st.data())
def test_messages_survive_any_cut_of_the_bytes(messages: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(frame(Opcode.BINARY, message) for message in messages)
    frames = ServerFrames(LIMITS)
    seen: list[bytes] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        seen += frames.feed(stream[:size])
        stream = stream[size:]
    assert seen == messages


FRAMES = st.one_of(
    st.builds(
        lambda data, op: frame(op, data),
        st.binary(max_size=140),
        st.sampled_from([Opcode.TEXT, Opcode.BINARY]),
    ),
    st.builds(lambda data, fin: text(data, fin=fin), st.text(max_size=9).map(str.encode), st.booleans()),
    st.builds(lambda data, fin: more(data, fin=fin), st.binary(max_size=9), st.booleans()),
    st.builds(lambda data: frame(Opcode.PING, data), st.binary(max_size=9)),
    st.sampled_from(
        [frame(Opcode.CLOSE, b"\x03\xe8"), frame(Opcode.TEXT, b"x", mask=False), text(b"x" * 1001)]
    ),
    st.builds(lambda data: frame(Opcode.CLOSE, data), st.binary(max_size=5)),
    st.builds(
        lambda code, reason: frame(Opcode.CLOSE, code.to_bytes(2, "big") + reason.encode()),
        st.one_of(
            st.sampled_from([1000, 1001, 1005, 1006, 1012, 2999, 3000, 4999, 5000]), st.integers(0, 5000)
        ),
        st.text(max_size=3),
    ),
    st.binary(min_size=1, max_size=4),
)


@given(st.lists(FRAMES, max_size=8), st.data())
def test_short_messages_are_taken_as_the_library_would_take_them(
    parts: list[bytes], data: st.DataObject
) -> None:
    ours, library = ServerFrames(LIMITS), ServerFrames(LIMITS)
    library._short_bytes = library._long_bytes = -1  # sends every frame the long way
    stream = b"".join(parts)
    seen: list[bytes] = []
    expected = library.feed(stream)
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        seen += ours.feed(stream[:size])
        stream = stream[size:]
    assert seen == expected
    assert (ours.finished, ours.failure) == (library.finished, library.failure)
    assert ours.peer_closed == library.peer_closed
    assert b"".join(ours.control) == b"".join(library.control)


def random_frame(chance: random.Random) -> bytes:
    """Return a frame; most are short whole messages, the others miss one of the conditions for that."""
    size = chance.choice(
        [0, 1, chance.randrange(200), 125, 126, 127, 999, 1000, 1001, chance.randrange(70_000)]
    )
    payload = chance.randbytes(size) if chance.random() < 0.3 else b"x" * size
    kind = chance.choice([Opcode.TEXT, Opcode.TEXT, Opcode.BINARY, Opcode.CONT, Opcode.PING, Opcode.CLOSE])
    is_control = kind in (Opcode.PING, Opcode.CLOSE)
    payload = payload[:100] if is_control else payload
    fin = is_control or chance.random() < 0.9
    whole = bytearray(frame(kind, payload, fin=fin, mask=chance.random() < 0.95))
    if chance.random() < 0.1:
        whole[chance.randrange(2)] ^= 1 << chance.randrange(8)  # another length, opcode or reserved bit
    return bytes(whole[: chance.randrange(len(whole))] if chance.random() < 0.05 else whole)


def test_a_message_that_comes_alone_is_taken_as_in_a_flow() -> None:
    """10,000 frames whole, and the same ones cut in two, which takes the way of all others."""
    chance = random.Random(7)
    pair = alone, cut = ServerFrames(LIMITS), ServerFrames(LIMITS)
    taken = 0
    for _ in range(10_000):
        data = random_frame(chance)
        seen = alone.feed(memoryview(data))
        assert seen == cut.feed(data[:1]) + cut.feed(data[1:])
        state = [(one.finished, one.failure, one.control, one.peer_closed) for one in pair]
        assert state[0] == state[1]
        taken += len(seen)
        if alone.finished or chance.random() < 0.2:
            pair = alone, cut = ServerFrames(LIMITS), ServerFrames(LIMITS)
    assert taken > 1000


@given(st.binary(max_size=300))
def test_random_bytes_never_raise(data: bytes) -> None:
    frames = ServerFrames(LIMITS)
    frames.feed(data)
    assert frames.failure is None or frames.finished


@pytest.mark.parametrize("size", [0, 125, 126, 65535, 65536, 1 << 20])
def test_headers_are_those_of_unmasked_frames(size: int) -> None:
    payload = os.urandom(8)[:1] * size
    assert frame_header(size) + payload == frame(Opcode.TEXT, payload, mask=False)
    assert frame_header(size, binary=True) + payload == frame(Opcode.BINARY, payload, mask=False)


def test_headers_of_pieces_make_one_fragmented_message() -> None:
    assert frame_header(1, first=True, final=False) == b"\x01\x01"
    assert frame_header(1, first=False, final=False) == b"\x00\x01"
    assert frame_header(1, first=False, final=True) == b"\x80\x01"


def test_pings_cost_no_more_than_small_messages() -> None:
    """One read may hold tens of thousands, and nobody else has a turn meanwhile."""

    def seconds(flood: bytes) -> float:
        frames = ServerFrames(LIMITS)
        began = time.perf_counter()
        frames.feed(flood)
        return time.perf_counter() - began

    text, ping = b"\x81\x81abcd1" * 5000, b"\x89\x81abcd1" * 5000
    assert min(seconds(ping) for _ in range(5)) < 3 * min(seconds(text) for _ in range(5))


def test_long_messages_survive_any_cut_and_are_bounded_as_short_ones_are() -> None:
    limits = FrameLimits(frame_bytes=200_000, message_bytes=300_000, fragments=8)
    chance = random.Random(7)
    frames = ServerFrames(limits)
    sent = [chance.randbytes(size) for size in (65_535, 65_536, 70_001, 200_000)]
    text_of = [
        message.hex().encode()[:size] for message, size in zip(sent, (65_536, 99_999, 5), strict=False)
    ]
    data = b"".join(
        [*(frame(Opcode.BINARY, each) + frame(Opcode.PING, b"p") for each in sent), *map(text, text_of)]
    )
    # Fragments go to the library, also with a long one among them.
    data += text(b"a" * 150_000, fin=False) + more(b"b" * 150_000, fin=True)
    got: list[bytes] = []
    while data:
        size = chance.choice((1, 13, 14, 15, 70_000, 256 * 1024))
        got += frames.feed(memoryview(data)[:size])
        data = data[size:]
    assert got == [*sent, *text_of, b"a" * 150_000 + b"b" * 150_000]
    assert (frames.control, frames.finished) == ([b"\x8a\x01p"] * len(sent), False)
    assert ServerFrames(limits).feed(text(b"a" * 99_999 + b"\xff")) == []
    for wrong, code in (
        (text(b"a" * 99_999 + b"\xff"), INVALID_DATA),
        (frame(Opcode.BINARY, bytes(200_001)), MESSAGE_TOO_BIG),
        (frame(Opcode.BINARY, bytes(100_000), mask=False), PROTOCOL_ERROR),
        (text(b"a", fin=False) + frame(Opcode.BINARY, bytes(100_000)), PROTOCOL_ERROR),
    ):
        frames = ServerFrames(limits)
        assert frames.feed(wrong) == []
        assert (frames.finished, close_code(frames)) == (True, code)
