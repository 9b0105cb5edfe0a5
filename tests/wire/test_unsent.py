from __future__ import annotations

from collections import deque

import pytest

from execserver.wire.unsent import drop_sent


@pytest.mark.parametrize(
    ("count", "left"),
    [
        (0, [b"abc", b"de"]),
        (2, [b"c", b"de"]),
        (3, [b"de"]),
        (4, [b"e"]),
        (5, []),
    ],
)
def test_what_was_sent_is_dropped_from_the_front(count: int, left: list[bytes]) -> None:
    pieces: deque[bytes | memoryview] = deque([b"abc", b"de"])
    drop_sent(pieces, count)
    assert [bytes(piece) for piece in pieces] == left
