from __future__ import annotations

from execserver.core.output_log import Chunk, TimedChunk
from execserver.core.spool_index import SpoolIndex, unpack


def chunks(*seqs: int, size: int = 75) -> list[TimedChunk]:
    """Return chunks that take 100 bytes each in a file, at times of ten times their numbers."""
    return [TimedChunk(Chunk(seq, "stdout", b"x" * size), 10 * seq) for seq in seqs]


def write(index: SpoolIndex, *seqs: int) -> tuple[int, int]:
    segment, packed = index.place(chunks(*seqs, size=100 - 21))
    assert len(packed) == segment.length == 100 * len(seqs)
    index.add(segment)
    return segment.offset, segment.length


def test_chunks_come_back_as_they_were() -> None:
    wanted = [TimedChunk(Chunk(1, "stderr", b""), 5), TimedChunk(Chunk(2**40, "pty", b"ab"), 2**50)]
    segment, packed = SpoolIndex(1000).place(wanted)
    assert unpack(packed) == wanted
    assert (segment.first_seq, segment.last_seq, segment.output_bytes) == (1, 2**40, 2)


def test_a_full_file_is_written_from_its_beginning_and_the_oldest_is_forgotten() -> None:
    index = SpoolIndex(350)
    assert [write(index, seq) for seq in (1, 2, 3)] == [(0, 100), (100, 100), (200, 100)]
    assert write(index, 4, 5) == (0, 200)
    assert (index.oldest_seq, index.held_bytes) == (3, 3 * 79)
    assert write(index, 6) == (200, 100)
    assert (index.oldest_seq, index.held_bytes) == (4, 3 * 79)


def test_what_lies_behind_the_end_of_the_writing_goes_first() -> None:
    """It is older than what is at the beginning of the file, and readers want no hole."""
    index = SpoolIndex(350)
    for seqs in ((1,), (2,), (3,), (4, 5)):
        write(index, *seqs)
    assert write(index, 6, 7) == (0, 200)
    assert index.oldest_seq == 6


def test_places_are_found_by_number_size_and_time() -> None:
    index = SpoolIndex(10_000)
    assert (index.segment_after(0), index.seq_before_last(5), index.seq_before_time(5)) == (None, 0, 0)
    for seq in (1, 3, 5):
        write(index, seq, seq + 1)
    found = index.segment_after(2)
    assert found is not None
    assert (found.first_seq, found in index) == (3, True)
    assert index.segment_after(6) is None
    assert index.seq_before_last(100) == 4
    assert index.seq_before_last(10**6) == 0
    assert index.seq_before_time(41) == 4
    assert index.seq_before_time(40) == 2
    assert index.seq_before_time(100) == 6
