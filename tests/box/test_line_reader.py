"""What is known of the row in which the cursor is, from what was written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.box.keys import line_reader
from execserver.box.keys.line_model import BLANK
from execserver.box.keys.line_reader import LineReader
from execserver.box.keys.line_style import styled
from tests.box.far_side import COLUMNS, ROWS, Terminal
from tests.box.test_prediction import NOISE

# What terminals do with a sequence that another one cuts off is not what pyte does.
WHOLE = NOISE.filter(lambda data: data != b"\x1b[1")
LINES = b"line\r\n" * (2 * ROWS)


def read(*pieces: bytes) -> LineReader:
    """Return a reader of these pieces."""
    reader = LineReader(ROWS, COLUMNS)
    for each in pieces:
        reader.feed(each)
    return reader


def is_blank_right(reader: LineReader) -> bool:
    """Tell whether all cells from the cursor on are known to be blank."""
    column = reader.model.column
    return column is not None and set(reader.model.cells[column:]) <= {BLANK}


@pytest.mark.parametrize(
    ("written", "column"),
    [
        (b"", None),
        (b"\r", 0),
        (b"\r\nab", 2),
        (b"\rab\b", 1),
        (b"\rabc\x1b[2D", 1),
        (b"\rab\x1b[3C", 5),
        (b"\ra\t", 8),
        (b"\r\x1b[7G", 6),
        (b"\x1b[3;5H", 4),
        (b"\r" + b"x" * COLUMNS, COLUMNS),
        (b"\r" + b"x" * (COLUMNS + 2), 2),
        ("\rä".encode(), 2),  # or less
        ("\rä\b\b".encode(), None),
        (b"\r\xff", None),
        (b"\r\x1b]0;title\x07\x1b[?2004h", 0),
        (b"\r\x1bP+q\x1b\\", None),
        (b"\ra\x1b7\rb\x1b8", None),
        (b"\r\x1b[" + b"9" * 5000 + b"C", None),
    ],
)
def test_the_column(written: bytes, column: int | None) -> None:
    assert read(written).model.column == column
    assert read(*(bytes((each,)) for each in written)).model.column == column


@pytest.mark.parametrize(
    ("written", "is_known"),
    [
        (b"\r$ ", False),  # something may have been there
        (b"\r\n$ ", True),
        (b"\r\nabc\r", False),
        (b"\r\nabc\r\x1b[K", True),
        (b"\r\na\r\n\x1b[A", False),
        (b"\r\na\r\n\x1b[A\r\n", False),
        (b"\r\na\r\n\x1b[A\r\n\r\n", True),
        (b"\x1b[2;2H\r\n", False),
        (b"\x1b[2;2H" + LINES, True),
        (b"\x1b[H\x1b[2J$ ", True),
        (b"\x1b[2;1H\x1b[J\r\n\r\n", True),
        (b"\r\n\x1b[44m\x1b[K", False),
        (b"\r\nx\x1b[?1049h\x1b[H\x1b[2Jtext\x1b[?1049l", True),
        (b"\r\nx\x1b[?47h\x1b[H\x1b[2Jtext\x1b[?47l", False),
        (b"\r\nabc\x1b[3D\x1b[3P", True),
        (b"\r\nabc\x1b[3D\x1b[2@", False),
    ],
)
def test_whether_the_row_is_blank_right_of_the_cursor(written: bytes, is_known: bool) -> None:
    assert is_blank_right(read(written)) is is_known


@pytest.mark.parametrize(
    ("parameters", "is_plain"),
    [
        (b"", True),
        (b"0", True),
        (b"1;31", False),
        (b"31;0", True),
        (b"38;5;1;39", True),
        (b"38;2;0;0;0", False),
        (b"38:5:1", False),
        (b"4:3;24", True),
        (b"1;2;22;7;27;100;49", True),
        (b"77", False),
        (b"9" * 5000, False),
    ],
)
def test_the_style(parameters: bytes, is_plain: bool) -> None:
    assert (styled(0, parameters) == 0) is is_plain
    assert styled(styled(7, parameters), b"") == 0


def test_a_large_piece_is_read_as_in_small_ones() -> None:
    large = b"\x1b[?7l" + b"text\x1b[32m of\x1b[0m a line\r\n" * 2000 + b"\x1b[0m$ "
    whole, pieces = read(large), read(*(large[at : at + 100] for at in range(0, len(large), 100)))
    assert (whole.model.cells, whole.model.column) == (pieces.model.cells, pieces.model.column)
    assert whole.trouble == pieces.trouble != 0
    assert whole.model.style == 0


def test_the_first_screen_is_not_taken_for_known_that_was_passed_over() -> None:
    text = b"\r\n\x1b[31m" + b"text " * 2000 + b"\x1b[?1049h\x1b[m" + b"screen\r\n" * 1000
    reader = read(b"\r\n\x1b[m$ ", text, b"\x1b[?1049l")
    assert reader.model.column is None
    assert reader.model.style != 0


def test_a_long_text_in_a_sequence_is_not_kept() -> None:
    reader = read(b"\r\n\x1b]52;c;", *[b"A" * 5000] * 20)
    assert len(reader._held) < 5000
    reader.feed(b"\x07$")
    assert reader.model.column == 1


@given(st.lists(st.one_of(NOISE, st.binary(max_size=8))), st.integers(1, 4))
def test_no_bytes_make_it_fail(pieces: list[bytes], size: int) -> None:
    data = b"".join(pieces)
    reader = read(*(data[at : at + size] for at in range(0, len(data), size)), LINES)
    assert len(reader.model.cells) == COLUMNS


@given(st.lists(st.one_of(WHOLE, st.sampled_from([b"ab", b"\r\n", b"  ", b"\x1b[?25l"]))))
def test_what_is_known_is_so(pieces: list[bytes]) -> None:
    compare(pieces)


@given(
    st.lists(
        st.lists(
            st.one_of(WHOLE, st.sampled_from([b"ab", b"\r\n", b"  ", b"\x1b[K", b"\x1b[m"])), max_size=20
        )
    ),
)
def test_what_is_known_after_large_pieces_is_so(pieces: list[list[bytes]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_reader, "_LARGE", 24)
        patch.setattr(line_reader, "_FULL", 8)
        compare([b"".join(each) for each in pieces])


def compare(pieces: list[bytes]) -> None:
    """Let a terminal and a reader take these, and compare what is known with what is there."""
    terminal, reader = Terminal(), LineReader(ROWS, COLUMNS)
    for each in pieces:
        terminal.write(each)
        reader.feed(each)
        model, cursor = reader.model, terminal.cursor
        if reader.is_between or reader.trouble or model.column is None:
            continue
        assert (model.style == 0) <= (cursor.attrs == terminal.default_char)
        row = [terminal.buffer[cursor.y][x] for x in range(COLUMNS)]
        if model.column == cursor.x:
            for known, cell in zip(model.cells, row, strict=True):
                assert known != BLANK or cell == terminal.default_char
                assert not 0x20 < known < 0x7F or cell == terminal.default_char._replace(data=chr(known))
