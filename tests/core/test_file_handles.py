"""Ids, limits, modes and check order of file handles (no files involved)."""

from __future__ import annotations

import errno

import pytest

from execserver.core.file_handles import FileHandles, OpenFile
from execserver.protocol.errors import InvalidRequest, NotFound
from execserver.protocol.files import FsOpenMode

READ, REPLACE = FsOpenMode.READ, FsOpenMode.REPLACE
TOO_LONG = "x" * 33


class Fixture:
    """Handles, and the descriptors they closed."""

    def __init__(self, max_handles: int = 128) -> None:
        self.closed: list[int] = []
        self.handles = FileHandles(self.closed.append, max_handles)

    def add(self, handle_id: str, fd: int, mode: FsOpenMode = READ) -> None:
        self.handles.add(handle_id, OpenFile(fd, mode, local=True))


@pytest.fixture
def fixture() -> Fixture:
    return Fixture()


def test_an_open_file_is_found_until_it_is_closed(fixture: Fixture) -> None:
    fixture.add("h", 7)
    assert fixture.handles.for_reading("h", 1).fd == 7
    fixture.handles.close("h")
    assert fixture.closed == [7]
    with pytest.raises(NotFound, match=r"^unknown file read handle `h`$"):
        fixture.handles.for_reading("h", 1)
    fixture.handles.close("h")
    assert fixture.closed == [7]


@pytest.mark.parametrize("handle_id", ["", "x" * 32, "é" * 16])
def test_ids_may_have_up_to_32_bytes(fixture: Fixture, handle_id: str) -> None:
    fixture.handles.check_id(handle_id)


@pytest.mark.parametrize("handle_id", [TOO_LONG, "é" * 17])
def test_longer_ids_are_refused_before_anything_else(fixture: Fixture, handle_id: str) -> None:
    text = r"^file read handle ID must not exceed 32 bytes$"
    with pytest.raises(InvalidRequest, match=text):
        fixture.handles.check_id(handle_id)
    with pytest.raises(InvalidRequest, match=text):
        fixture.handles.for_reading(handle_id, 0)
    with pytest.raises(InvalidRequest, match=r"^file handle ID must not exceed 32 bytes$"):
        fixture.handles.for_writing(handle_id, 2**64 - 1, 0)


def test_an_id_in_use_is_refused_and_the_new_file_closed(fixture: Fixture) -> None:
    fixture.add("h", 7)
    with pytest.raises(InvalidRequest, match=r"^file read handle `h` already exists$"):
        fixture.add("h", 8)
    assert fixture.closed == [8]
    assert fixture.handles.for_reading("h", 1).fd == 7


def test_one_file_too_many_is_refused_and_closed() -> None:
    fixture = Fixture()
    for number in range(128):
        fixture.add(str(number), number)
    with pytest.raises(InvalidRequest, match=r"^at most 128 file reads may be open per connection$"):
        fixture.add("more", 999)
    with pytest.raises(InvalidRequest, match="already exists"):
        fixture.add("5", 998)
    assert fixture.closed == [999, 998]
    assert len(fixture.handles) == 128


@pytest.mark.parametrize("length", [0, 1_048_577, 2**64 - 1])
def test_the_length_of_a_block_is_checked_before_its_handle(fixture: Fixture, length: int) -> None:
    fixture.add("h", 7)
    text = r"^file read block length must be between 1 and 1048576$"
    for handle_id in ("h", "unknown"):
        with pytest.raises(InvalidRequest, match=text):
            fixture.handles.for_reading(handle_id, length)
    assert fixture.handles.for_reading("h", 1_048_576).fd == 7


def test_reading_from_a_handle_for_writing_closes_it(fixture: Fixture) -> None:
    fixture.add("w", 7, REPLACE)
    with pytest.raises(OSError) as caught:
        fixture.handles.for_reading("w", 1)
    assert caught.value.errno == errno.EBADF
    assert fixture.closed == [7]


def test_writing_to_a_handle_for_reading_leaves_it_open(fixture: Fixture) -> None:
    fixture.add("r", 7)
    with pytest.raises(OSError) as caught:
        fixture.handles.for_writing("r", 0, 1)
    assert caught.value.errno == errno.EBADF
    assert fixture.handles.for_reading("r", 1).fd == 7


def test_a_block_to_write_is_checked_in_order(fixture: Fixture) -> None:
    fixture.add("w", 7, REPLACE)
    assert fixture.handles.for_writing("w", 2**63 - 2, 1).fd == 7
    for length in (0, 1_048_577):
        with pytest.raises(InvalidRequest, match=r"^file write block length must be between 1 and 1048576$"):
            fixture.handles.for_writing("unknown", 2**64 - 1, length)
    text = r"^file write range exceeds the signed 64-bit file offset limit$"
    with pytest.raises(InvalidRequest, match=text):
        fixture.handles.for_writing("unknown", 2**63 - 1, 1)
    with pytest.raises(NotFound, match=r"^unknown file handle `unknown`$"):
        fixture.handles.for_writing("unknown", 0, 1)


def test_everything_is_closed_at_the_end(fixture: Fixture) -> None:
    for number in range(3):
        fixture.add(str(number), number, REPLACE if number else READ)
    fixture.handles.close_all()
    assert sorted(fixture.closed) == [0, 1, 2]
    assert len(fixture.handles) == 0
    fixture.handles.close_all()
    assert len(fixture.closed) == 3
