"""Reading files whole in pieces, and single blocks."""

from __future__ import annotations

import errno
import gc
import os

import pytest

from execserver.files import reading
from execserver.files.reading import (
    PIECE_BYTES,
    FileReader,
    FileTooLarge,
    read_block,
)
from tests.files.tools import PeakMemory, open_descriptors, put

PATTERN = bytes(range(251))


def pattern(length: int) -> bytes:
    return (PATTERN * (length // len(PATTERN) + 1))[:length]


@pytest.mark.parametrize("length", [0, 1, 5, PIECE_BYTES - 1, PIECE_BYTES])
def test_what_fits_one_piece_is_there_at_once(folder: bytes, length: int) -> None:
    reader = FileReader.open(put(folder + b"/f", pattern(length)))
    assert reader.whole == pattern(length)
    assert b"".join(reader.pieces()) == pattern(length)


@pytest.mark.parametrize("length", [PIECE_BYTES + 1, 2 * PIECE_BYTES, 2 * PIECE_BYTES + 7])
def test_a_larger_file_comes_in_pieces_that_can_be_encoded_one_by_one(folder: bytes, length: int) -> None:
    reader = FileReader.open(put(folder + b"/f", pattern(length)))
    assert reader.whole is None
    pieces = list(reader.pieces())
    assert b"".join(pieces) == pattern(length)
    assert all(len(piece) % 3 == 0 and len(piece) <= PIECE_BYTES for piece in pieces[:-1])


def test_the_pieces_close_the_file_at_the_end_and_when_dropped(folder: bytes) -> None:
    path = put(folder + b"/f", pattern(3 * PIECE_BYTES))
    before = open_descriptors()
    for _ in FileReader.open(path).pieces():
        pass
    assert open_descriptors() == before
    pieces = FileReader.open(path).pieces()
    next(pieces)
    del pieces
    gc.collect()
    assert open_descriptors() == before
    FileReader.open(path)
    gc.collect()
    assert open_descriptors() == before


def test_a_file_that_grows_is_given_out_as_it_was_when_opened(folder: bytes) -> None:
    path = put(folder + b"/f", pattern(PIECE_BYTES + 10))
    reader = FileReader.open(path)
    with open(path, "ab") as file:
        file.write(b"x" * PIECE_BYTES)
    assert b"".join(reader.pieces()) == pattern(PIECE_BYTES + 10)


def test_a_file_that_is_cut_meanwhile_ends_early(folder: bytes) -> None:
    path = put(folder + b"/f", pattern(3 * PIECE_BYTES))
    reader = FileReader.open(path)
    os.truncate(path, PIECE_BYTES + 5)
    assert b"".join(reader.pieces()) == pattern(PIECE_BYTES + 5)


def test_files_without_a_size_are_read_to_the_end() -> None:
    reader = FileReader.open(b"/proc/self/status")
    assert reader.size == 0
    content = reader.whole
    assert content is not None
    assert content.startswith(b"Name:")
    assert content.endswith(b"\n")
    reader.close()


def test_a_long_file_without_a_size_is_read_with_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PIECE_BYTES", 300)
    pauses: list[None] = []
    before = open_descriptors()
    reader = FileReader.open(b"/proc/self/status", pause=lambda: pauses.append(None))
    with open("/proc/self/status", "rb") as file:
        expected = len(file.read())
    assert reader.whole is None
    assert abs(len(b"".join(reader.pieces())) - expected) < 20
    assert len(pauses) == -(-expected // 300)
    assert open_descriptors() == before


def test_a_file_without_a_size_has_a_limit_that_shows_before_the_first_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "PIECE_BYTES", 30)
    monkeypatch.setattr(reading, "UNSIZED_FILE_BYTES", 99)
    before = open_descriptors()
    with pytest.raises(FileTooLarge, match="file is too large to read: limit is 99 bytes"):
        FileReader.open(b"/proc/self/status")
    assert open_descriptors() == before


def test_a_file_above_the_limit_is_refused_unread(folder: bytes) -> None:
    path = put(folder + b"/big")
    os.truncate(path, 536_870_913)
    before = open_descriptors()
    with pytest.raises(FileTooLarge) as caught:
        FileReader.open(path)
    assert caught.value.code == -32600
    assert caught.value.message == "file is too large to read: limit is 536870912 bytes"
    os.truncate(path, 11)
    with pytest.raises(FileTooLarge):
        FileReader.open(path, limit=10)
    assert open_descriptors() == before
    FileReader.open(path, limit=11).close()


def test_a_large_file_is_never_held(folder: bytes) -> None:
    path = put(folder + b"/big")
    os.truncate(path, 64 * 1024 * 1024)
    memory = PeakMemory()
    assert sum(len(piece) for piece in FileReader.open(path).pieces()) == 64 * 1024 * 1024
    assert memory.growth() < 4 * 1024 * 1024


def test_a_block_is_read_anywhere_and_short_only_at_the_end(folder: bytes) -> None:
    fd = os.open(put(folder + b"/f", b"hello"), os.O_RDONLY)
    try:
        assert read_block(fd, 0, 2) == b"he"
        assert read_block(fd, 2, 3) == b"llo"
        assert read_block(fd, 2, 4) == b"llo"
        assert read_block(fd, 5, 1) == b""
        assert read_block(fd, 99, 1) == b""
        assert read_block(fd, 0, 1024 * 1024) == b"hello"
        assert read_block(fd, 2**63 - 1 - 5, 5) == b""
    finally:
        os.close(fd)


def test_a_block_is_filled_over_short_reads() -> None:
    fd = os.open("/proc/self/status", os.O_RDONLY)
    try:
        assert len(read_block(fd, 0, 1024 * 1024)) > 500
        assert len(read_block(fd, 0, 500)) == 500
    finally:
        os.close(fd)


@pytest.mark.parametrize("offset", [2**63 - 1, 2**63, 2**64 - 1])
def test_an_offset_beyond_what_the_system_counts_is_an_invalid_argument(folder: bytes, offset: int) -> None:
    fd = os.open(put(folder + b"/f", b"hello"), os.O_RDONLY)
    try:
        with pytest.raises(OSError) as caught:
            read_block(fd, offset, 1)
        assert caught.value.errno == errno.EINVAL
    finally:
        os.close(fd)
