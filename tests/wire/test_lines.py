"""Messages as lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.wire.lines import LineSplitter, LineTooLong


def test_lines_are_cut_at_line_feeds_and_blank_ones_skipped() -> None:
    lines = LineSplitter(100)
    assert lines.feed(b'{"a":1}\n\n   \n{"b"') == [b'{"a":1}']
    assert lines.feed(b":2}\n") == [b'{"b":2}']


def test_the_last_line_needs_no_line_end() -> None:
    lines = LineSplitter(100)
    lines.feed(b"x")
    assert lines.finish() == [b"x"]
    assert lines.finish() == []


def test_a_line_at_the_limit_passes_and_one_byte_more_is_refused() -> None:
    lines = LineSplitter(4)
    assert lines.feed(b"abcd\n") == [b"abcd"]
    lines.feed(b"abc")
    with pytest.raises(LineTooLong, match="longer than 4 bytes"):
        lines.feed(b"de")


@given(st.lists(st.binary(min_size=1, max_size=20).filter(lambda b: b"\n" not in b and b.strip())), st.data())
def test_lines_survive_any_cut_of_the_bytes(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    splitter = LineSplitter(1000)
    seen: list[bytes] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        seen += splitter.feed(stream[:size])
        stream = stream[size:]
    assert seen == lines
