"""Lines of the input: cut as they come, and one that is too long costs itself only."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from execserver.mcp.lines import TOO_LONG, BoundedLines


def fed(lines: BoundedLines, *pieces: bytes) -> list[bytes]:
    return [line for piece in pieces for line in lines.feed(piece)]


def test_lines_come_whole_however_they_are_cut() -> None:
    assert fed(BoundedLines(100), b'{"a"', b":1}\n{}", b"\n") == [b'{"a":1}', b"{}"]


def test_empty_and_blank_lines_are_skipped() -> None:
    assert fed(BoundedLines(100), b"\n\n \t\r\nx\n\n") == [b"x"]


def test_a_line_that_is_too_long_is_marked_and_the_next_one_is_read() -> None:
    lines = BoundedLines(4)
    assert fed(lines, b"abcd\n", b"abc", b"de", b"f" * 1000, b"g\nx\n") == [b"abcd", TOO_LONG, b"x"]
    assert fed(lines, b"12345\n1\n") == [TOO_LONG, b"1"]


def test_of_a_line_that_is_too_long_nothing_is_kept() -> None:
    lines = BoundedLines(4)
    fed(lines, b"abcde", b"f" * 1000)
    assert lines._parts == []


def test_the_end_of_the_input_ends_the_last_line() -> None:
    lines = BoundedLines(4)
    assert fed(lines, b"ab") == []
    assert lines.finish() == [b"ab"]
    assert lines.finish() == []
    fed(lines, b"abcde")
    assert lines.finish() == [TOO_LONG]
    fed(lines, b"  ")
    assert lines.finish() == []


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=5), st.integers(0, 10))
def test_where_the_stream_is_cut_makes_no_difference(data: bytes, cuts: list[int], limit: int) -> None:
    pieces, start = [], 0
    for cut in sorted(cuts):
        pieces.append(data[start:cut])
        start = max(start, cut)
    lines = BoundedLines(limit)
    found = [*fed(lines, *pieces, data[start:]), *lines.finish()]
    expected = [TOO_LONG if len(line) > limit else line for line in data.split(b"\n")]
    assert found == [line for line in expected if line is TOO_LONG or line.strip()]
