"""Pieces of bytes that wait, in order, to be written to a socket, which takes as many bytes as it can."""

from __future__ import annotations

from collections import deque


def drop_sent(pieces: deque[bytes | memoryview] | deque[memoryview], count: int) -> None:
    """Drop the first bytes of the pieces; there are at least as many.  What is left of a piece is a view."""
    while count:
        head = pieces[0]
        if len(head) > count:
            pieces[0] = memoryview(head)[count:]
            return
        count -= len(head)
        pieces.popleft()
