"""The engine's protocol: commands, replies in pieces of any size, and the bounds."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.relay.engine.resp import Decoder, Failure, InvalidReply, Reply, encode

REPLIES: list[tuple[bytes, Reply]] = [
    (b"+OK\r\n", b"OK"),
    (b"-WRONGTYPE no hash\r\n", Failure("WRONGTYPE no hash")),
    (b":-12\r\n", -12),
    (b"$4\r\na\r\nb\r\n", b"a\r\nb"),
    (b"$0\r\n\r\n", b""),
    (b"$-1\r\n", None),
    (b"*0\r\n", []),
    (b"*-1\r\n", None),
    (b"*3\r\n$1\r\na\r\n*2\r\n:1\r\n*0\r\n$-1\r\n", [b"a", [1, []], None]),
]


def test_a_command_is_an_array_of_strings() -> None:
    assert encode(("SET", b"\x00", 12)) == b"*3\r\n$3\r\nSET\r\n$1\r\n\x00\r\n$2\r\n12\r\n"
    assert encode(("ECHO", "ü")) == b"*2\r\n$4\r\nECHO\r\n$2\r\n\xc3\xbc\r\n"


@given(st.data())
def test_replies_come_out_whole_however_they_are_cut(data: st.DataObject) -> None:
    stream = b"".join(raw for raw, _ in REPLIES)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=8)) | {0, len(stream)})
    decoder, found = Decoder(), []
    for start, end in pairwise(cuts):
        found += decoder.feed(stream[start:end])
    assert found == [reply for _, reply in REPLIES]


def test_replies_come_out_byte_by_byte() -> None:
    decoder = Decoder()
    found = [reply for raw, _ in REPLIES for byte in raw for reply in decoder.feed(bytes([byte]))]
    assert found == [reply for _, reply in REPLIES]


def test_the_code_of_a_failure_is_its_first_word() -> None:
    assert Failure("NOSCRIPT No matching script.").code == "NOSCRIPT"


@pytest.mark.parametrize(
    "data",
    [
        *(b"?\r\n", b"\r\n", b":x\r\n", b":\r\n", b"$-2\r\n", b"*-2\r\n", b"$1\r\nab\r\n"),
        b"$1048577\r\n",  # longer than a reply may be: refused before it is there
        b"*16385\r\n",
        b"*1\r\n" * 5,
        b"*2\r\n$1000000\r\n" + bytes(1_000_000) + b"\r\n$1000000\r\n",  # together too long
        b"*10000\r\n" + b":1\r\n" * 9999 + b"*10000\r\n",  # together too many
        b"+" + b"x" * 4096,
        b":" + b"1" * 19 + b"\r\n",
    ],
)
def test_what_is_no_reply_or_too_large_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidReply):
        Decoder().feed(data)


@given(st.binary(max_size=64))
def test_random_bytes_are_replies_or_refused(data: bytes) -> None:
    try:
        Decoder().feed(data)
    except InvalidReply:
        pass
