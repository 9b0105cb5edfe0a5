from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.mcp.output_capture import STDERR, STDOUT, STREAM_BYTES, TOTAL_BYTES, OutputCapture, decoded

MIB = 1024 * 1024


def captured(*chunks: tuple[str, bytes]) -> OutputCapture:
    capture = OutputCapture()
    for stream, data in chunks:
        capture.add(stream, data)
    return capture


def test_both_streams_stand_in_the_order_of_arrival() -> None:
    capture = captured((STDOUT, b"a\n"), (STDERR, b"b\n"), (STDOUT, b"c\n"), (STDOUT, b"d\n"))
    assert capture.text() == "a\nb\nc\nd\n"
    assert capture.joined() == b"a\nb\nc\nd\n"
    assert capture.stream(STDOUT) == b"a\nc\nd\n"
    assert capture.stream(STDERR) == b"b\n"


def test_no_output_is_an_empty_text() -> None:
    assert OutputCapture().text() == ""
    assert captured((STDOUT, b"")).text() == ""


@pytest.mark.parametrize(
    ("stdout", "stderr", "shown"),
    [
        (3 * MIB, 0, (MIB, 0)),
        (0, 3 * MIB, (0, MIB)),
        (2 * MIB, 2 * MIB, (MIB // 3, MIB - MIB // 3)),
        (MIB, 1000, (MIB - 1000, 1000)),
        (1000, MIB, (1000, MIB - 1000)),
        (MIB // 2, MIB // 2, (MIB // 2, MIB // 2)),
        (MIB // 2, MIB // 2 + 1, (MIB // 2 - 1, MIB // 2 + 1)),
    ],
)
def test_above_the_cap_each_stream_has_its_share(stdout: int, stderr: int, shown: tuple[int, int]) -> None:
    text = captured((STDOUT, b"o" * stdout), (STDERR, b"e" * stderr)).text()
    assert (text.count("o"), text.count("e")) == shown
    assert len(text) <= TOTAL_BYTES


def test_the_first_bytes_of_a_stream_are_kept_and_the_rest_is_dropped() -> None:
    capture = captured((STDOUT, b"x" * (STREAM_BYTES - 1)), (STDOUT, b"yz"), (STDOUT, b"w"), (STDERR, b"!"))
    assert capture.stream(STDOUT) == b"x" * (STREAM_BYTES - 1) + b"y"
    assert capture.stream(STDERR) == b"!"


def test_bytes_that_are_not_utf_8_are_shown_as_replaced() -> None:
    assert captured((STDOUT, b"a\xff\xfeb")).text() == "a\ufffd\ufffdb"
    assert captured((STDOUT, b"end\xc3")).text() == "end\ufffd"
    assert decoded(b"a\xff") == "a\ufffd"


def test_a_character_in_two_pieces_is_one_with_the_other_stream_in_between() -> None:
    assert captured((STDOUT, "é".encode()[:1]), (STDERR, b"-"), (STDOUT, "é".encode()[1:])).text() == "-é"


def test_half_a_character_at_the_cut_is_left_out() -> None:
    text = captured((STDOUT, b"x" * (MIB - 1)), (STDOUT, "é".encode())).text()
    assert text == "x" * (MIB - 1)
    capture = captured((STDERR, b"e"), (STDOUT, b"x" * (MIB - 2)), (STDOUT, "é".encode()))
    assert capture.text() == "e" + "x" * (MIB - 2)


@given(st.lists(st.tuples(st.sampled_from((STDOUT, STDERR)), st.binary(max_size=20))))
def test_nothing_below_the_caps_is_lost(chunks: list[tuple[str, bytes]]) -> None:
    capture = captured(*chunks)
    assert capture.joined() == b"".join(data for _, data in chunks)
    for stream in (STDOUT, STDERR):
        assert capture.stream(stream) == b"".join(data for of, data in chunks if of == stream)
    text = "".join(data.decode("latin-1") for _, data in chunks)
    if text.isascii():
        assert capture.text() == text
