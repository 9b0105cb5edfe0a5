"""What is kept of a command's output, and what is told of the rest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver_adapters._kept import Kept


def filled(kept: Kept, *pieces: bytes) -> Kept:
    for piece in pieces:
        kept.add(piece)
    return kept


def test_output_within_the_limit_is_kept_whole() -> None:
    kept = filled(Kept(4, 4), b"abc", b"defgh")
    assert (kept.joined(), kept.left_out) == (b"abcdefgh", 0)


def test_the_middle_is_left_out_and_told() -> None:
    kept = filled(Kept(3, 2), b"abcdefgh")
    assert kept.joined() == b"abc\n[... 3 bytes left out ...]\ngh"
    assert kept.joined(note=False) == b"abcgh"
    assert kept.left_out == 3


def test_without_a_beginning_only_the_end_is_kept() -> None:
    kept = filled(Kept(0, 3), b"abcde", b"f")
    assert kept.joined(note=False) == b"def"


def test_without_an_end_only_the_beginning_is_kept() -> None:
    kept = filled(Kept(3, 0), b"ab", b"cdef")
    assert (kept.joined(note=False), kept.left_out) == (b"abc", 3)


def test_lost_bytes_are_told_where_nothing_else_is_missing() -> None:
    kept = filled(Kept(10, 10), b"abc")
    kept.lost = 7
    assert kept.text() == "abc\n[... 7 bytes left out ...]\n"


def test_text_that_is_no_utf8_has_the_replacement_character() -> None:
    assert filled(Kept(10, 0), b"a\xffb").text() == "a�b"


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        Kept(-1, 5)


@given(st.integers(0, 20), st.integers(0, 20), st.lists(st.binary(max_size=30)))
def test_pieces_make_no_difference(head: int, tail: int, pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    kept = filled(Kept(head, tail), *pieces)
    expected = whole if len(whole) <= head + tail else whole[:head] + whole[len(whole) - tail :]
    assert kept.joined(note=False) == expected
    assert kept.left_out == max(0, len(whole) - head - tail)


def test_memory_stays_bounded() -> None:
    kept = Kept(10, 100)
    for _ in range(1000):
        kept.add(b"x" * 70)
        assert len(kept._end) <= 200
