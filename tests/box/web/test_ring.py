"""What is kept of a terminal's output, however small the pieces are in which it comes."""

from __future__ import annotations

import tracemalloc

from execserver.box.web.ring import Cursor, Ring

KEPT = 64 * 1024


def filled(ring: Ring) -> bytes:
    """Add two bytes at a time until as much is gone again as is kept; return all of it."""
    every = b"".join(b"%02d" % (number % 97) for number in range(KEPT))
    for at in range(0, len(every), 2):
        ring.add(every[at : at + 2])
    return every


def test_readers_get_every_byte_of_small_pieces_and_the_number_of_those_that_are_gone() -> None:
    ring = Ring(KEPT)
    early, every = Cursor(ring), filled(ring)
    assert KEPT - 8192 <= ring.end - ring.begin <= KEPT
    first, found = early.take(1000), bytearray()
    assert first.lost == ring.begin
    found += first.data
    while early.has_news:
        piece = early.take(999)
        assert piece.lost == 0
        found += piece.data
    assert found == every[ring.begin :]
    ring.add(b"!")
    assert early.take(10) == (0, b"!")


def test_a_gap_between_small_pieces_is_told_where_it_is() -> None:
    ring = Ring(KEPT)
    ring.add(b"ab")
    ring.add_gap(5)
    ring.add(b"cd")
    ring.add_gap(None)
    reader = Cursor(ring)
    assert [reader.take(100) for _ in range(3)] == [(0, b"ab"), (5, b"cd"), (None, b"")]


def test_small_pieces_take_little_more_memory_than_their_bytes() -> None:
    ring = Ring(KEPT)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(KEPT):
            ring.add(b"%02d" % (number % 97))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 4 * KEPT
