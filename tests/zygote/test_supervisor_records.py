from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.zygote.records import RecordError
from execserver.zygote.supervision.records import (
    ACCEPT,
    CANCEL,
    DECLINE,
    FAILED,
    MAX_FRAME_BYTES,
    NOTIFY,
    WRAPPER,
    Answer,
    FrameReader,
    Message,
    Question,
    ShellEnded,
    Supervision,
    Withdrawn,
    decode_message,
    decode_supervision,
    encode_message,
    encode_supervision,
)

numbers = st.integers(0, 2**64 - 1)
strings = st.binary(max_size=40).map(lambda data: data.replace(b"\0", b""))
supervisions = st.builds(
    Supervision,
    st.binary(max_size=100),
    st.booleans(),
    st.sampled_from([NOTIFY, WRAPPER]),
    strings,
    st.lists(strings, max_size=4),
)
messages = st.one_of(
    st.builds(Question, numbers, strings, st.lists(strings, max_size=4), strings),
    st.builds(Answer, numbers, st.sampled_from([ACCEPT, DECLINE, CANCEL, FAILED])),
    st.builds(Withdrawn, numbers),
    st.builds(ShellEnded),
)


@given(supervisions)
def test_a_decoded_supervision_is_the_encoded_one(supervision: Supervision) -> None:
    assert decode_supervision(encode_supervision(supervision)) == supervision


@given(supervisions, st.data())
def test_a_damaged_supervision_is_one_or_a_record_error(
    supervision: Supervision, data: st.DataObject
) -> None:
    damaged = bytearray(encode_supervision(supervision))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_supervision(bytes(damaged))
    except RecordError:
        pass


@given(st.binary(max_size=60))
def test_random_bytes_are_a_message_or_a_record_error(data: bytes) -> None:
    try:
        message = decode_message(data)
    except RecordError:
        return
    assert decode_message(encode_message(message)[4:]) == message


@given(st.lists(messages, max_size=4), st.data())
def test_messages_are_found_however_the_stream_is_cut(sent: list[Message], data: st.DataObject) -> None:
    stream = b"".join(encode_message(message) for message in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    reader, found = FrameReader(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += reader.feed(stream[start:end])
    assert found == sent


def test_a_frame_that_is_too_long_is_refused_before_it_came() -> None:
    with pytest.raises(RecordError, match="frame"):
        FrameReader().feed(struct.pack("<I", MAX_FRAME_BYTES + 1))
    with pytest.raises(RecordError, match="frame"):
        encode_message(Question(1, b"/bin/true", [b"x" * MAX_FRAME_BYTES], b"/"))


@pytest.mark.parametrize(
    "message", [Question(1, b"a\0", [], b"/"), Question(1, b"a", [b"\0"], b"/")], ids=repr
)
def test_a_string_with_nul_is_refused(message: Message) -> None:
    with pytest.raises(RecordError, match="NUL"):
        encode_message(message)
