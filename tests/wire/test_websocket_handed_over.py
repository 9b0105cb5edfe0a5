"""A client's bytes, cut anywhere between two programs: the messages are the same."""

from __future__ import annotations

import os

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from execserver.handover.records import PackedFrames
from execserver.wire.websocket import FrameLimits, ServerFrames
from tests.support.ws_peer import BINARY, CONTINUATION, PING, TEXT, client_frame

LIMITS = FrameLimits(200_000, 400_000, 10)
payloads = st.one_of(st.binary(max_size=200), st.sampled_from([126, 65_535, 65_536, 100_000]).map(bytes))


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Return one message in frames, with pings between them."""
    parts = draw(st.lists(payloads, min_size=1, max_size=3))
    opcode = BINARY if draw(st.booleans()) else TEXT
    if opcode == TEXT:
        parts = [bytes(byte & 0x7F for byte in part) for part in parts]
    data = b""
    for number, part in enumerate(parts):
        data += client_frame(CONTINUATION if number else opcode, part, final=number == len(parts) - 1)
        if draw(st.booleans()):
            data += client_frame(PING, b"ping")
    return data


def carried(frames: ServerFrames) -> ServerFrames:
    packed = msgspec.msgpack.decode(msgspec.msgpack.encode(frames.pack()), type=PackedFrames)
    other = ServerFrames(LIMITS)
    other.restore(packed)
    return other


def result_of(pieces: list[bytes], *, over: bool) -> tuple[list[bytes], bytes, str | None]:
    frames, found, control = ServerFrames(LIMITS), [], b""
    for piece in pieces:
        found += frames.feed(piece)
        control += b"".join(frames.control)
        frames.control = []
        if over and not frames.finished:
            frames = carried(frames)
    return [bytes(each) for each in found], control, frames.failure


@given(st.lists(messages(), min_size=1, max_size=3), st.data())
def test_the_messages_are_the_same(sent: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    pieces = [whole[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert result_of(pieces, over=True) == result_of(pieces, over=False)


def test_each_byte_of_a_fragmented_message_can_be_the_last_before() -> None:
    frames = client_frame(TEXT, b"x" * 300, final=False) + client_frame(CONTINUATION, b"y" * 5)
    for cut in range(len(frames)):
        assert result_of([frames[:cut], frames[cut:]], over=True)[0] == [b"x" * 300 + b"y" * 5]


def test_limits_count_on_from_what_came_before() -> None:
    eleven = [client_frame(CONTINUATION if number else TEXT, b"x", final=False) for number in range(11)]
    assert result_of(eleven, over=True)[2] == result_of(eleven, over=False)[2] is not None
    long = [client_frame(TEXT, b"x" * 190_000, final=False)]
    long += [client_frame(CONTINUATION, b"x" * 190_000, final=False) for _ in range(2)]
    assert result_of(long, over=True)[2] == result_of(long, over=False)[2] is not None


def test_random_bytes_end_alike() -> None:
    for _ in range(200):
        noise = os.urandom(40)
        at = 20
        over = result_of([noise[:at], noise[at:]], over=True)
        assert over == result_of([noise[:at], noise[at:]], over=False)
