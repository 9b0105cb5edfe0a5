"""Retention, numbering and paging of output."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from execserver.core.output_log import MOST_CHUNKS, Chunk, OutputLog, TimedChunk


def log_of(*sizes: int, limit: int = 1000) -> OutputLog:
    log = OutputLog(limit)
    for size in sizes:
        log.append("stdout", b"x" * size)
    return log


def seqs(chunks: list[Chunk]) -> list[int]:
    return [chunk.seq for chunk in chunks]


def test_output_and_other_events_share_one_counter_from_1() -> None:
    log = OutputLog(10)
    assert [log.append("stdout", b"a"), log.take_seq(), log.append("stderr", b"b")] == [1, 2, 3]
    assert log.next_seq == 4


def test_whole_chunks_are_dropped_from_the_oldest_when_the_sum_passes_the_limit() -> None:
    log = log_of(400, 400, 200, limit=1000)
    assert seqs(log.page(0, None).chunks) == [1, 2, 3]
    log.append("stdout", b"y")
    assert seqs(log.page(0, None).chunks) == [2, 3, 4]
    assert (log.oldest_seq, log.lost_bytes) == (2, 400)


def test_of_chunks_of_a_byte_no_more_are_retained_than_take_some_memory() -> None:
    log, dropped = OutputLog(10 * MOST_CHUNKS), list[TimedChunk]()
    log.on_drop = dropped.append
    for _ in range(MOST_CHUNKS + 2):
        log.append("stdout", b"x")
    assert [(each.chunk.seq, each.chunk.data) for each in dropped] == [(1, b"x"), (2, b"x")]
    assert (log.oldest_seq, log.lost_bytes, log.size) == (3, 2, MOST_CHUNKS)
    log.append("stdout", b"longer")
    assert (log.oldest_seq, log.lost_bytes, log.size) == (4, 3, MOST_CHUNKS + 5)


def test_nothing_is_lost_before_the_limit() -> None:
    log = log_of(500, 500)
    assert (log.oldest_seq, log.lost_bytes) == (1, 0)


def test_a_chunk_larger_than_the_limit_is_dropped_at_once_and_counted() -> None:
    log = log_of(1001)
    assert log.page(0, None).chunks == []
    assert (log.oldest_seq, log.lost_bytes) == (2, 1001)


def test_the_first_chunk_comes_even_when_max_bytes_is_0() -> None:
    page = log_of(5, 5).page(0, 0)
    assert seqs(page.chunks) == [1]
    assert page.next_seq == 2


def test_further_chunks_come_only_while_the_total_fits() -> None:
    log = log_of(5, 5, 5)
    assert seqs(log.page(0, 10).chunks) == [1, 2]
    assert seqs(log.page(0, 14).chunks) == [1, 2]
    assert seqs(log.page(1, 15).chunks) == [2, 3]


def test_next_seq_without_a_chunk_is_the_next_one_of_the_process() -> None:
    log = log_of(5)
    log.take_seq()
    assert log.page(1, 100) == ([], 3)
    assert log.page(0, None).next_seq == 3


def test_text_of_joins_the_streams_that_are_asked_for() -> None:
    log = OutputLog(100)
    for stream, data in (("stdout", b"a"), ("stderr", b"b"), ("stdout", b"c")):
        log.append(stream, data)
    assert log.text_of("stdout") == b"ac"
    assert log.text_of("stdout", "stderr") == b"abc"


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 100), st.integers(0, 45))
def test_what_is_retained_is_the_newest_suffix_that_fits(sizes: list[int], limit: int, after: int) -> None:
    log = log_of(*sizes, limit=limit)
    kept: list[int] = []
    total = 0
    for seq in range(len(sizes), 0, -1):
        if total + sizes[seq - 1] > limit:
            break
        total += sizes[seq - 1]
        kept.insert(0, seq)
    assert seqs(log.page(after, None).chunks) == [seq for seq in kept if seq > after]
    assert log.lost_bytes == sum(sizes) - total
    assert log.oldest_seq == len(sizes) - len(kept) + 1


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), st.integers(0, 120))
def test_paging_through_by_next_seq_meets_every_chunk_once(sizes: list[int], max_bytes: int) -> None:
    log = log_of(*sizes, limit=10_000)
    met: list[int] = []
    after = 0
    while after < len(sizes):
        page = log.page(after, max_bytes)
        met += seqs(page.chunks)
        after = page.next_seq - 1
    assert met == list(range(1, len(sizes) + 1))
