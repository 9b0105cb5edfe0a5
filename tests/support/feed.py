"""How a peer cuts the bytes it sends: whole, one at a time, or at places drawn from a seed.

A feed never changes the bytes, only the sizes of the writes, so a server that behaves differently under
another feed depends on where the network happened to cut its input.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

Feed = Callable[[bytes], Iterator[bytes]]

LARGEST_BYTEWISE = 65_536
"""Messages above this many bytes are sent whole by every feed: cutting them finer only costs time."""


def whole(data: bytes) -> Iterator[bytes]:
    """Yield the bytes in one piece."""
    yield data


def bytewise(data: bytes) -> Iterator[bytes]:
    """Yield one byte at a time."""
    if len(data) > LARGEST_BYTEWISE:
        yield data
        return
    for index in range(len(data)):
        yield data[index : index + 1]


def random_cuts(seed: int, largest: int = 40) -> Feed:
    """Return a feed that yields pieces of 1 to `largest` bytes, the same ones for the same seed."""
    source = random.Random(seed)

    def feed(data: bytes) -> Iterator[bytes]:
        if len(data) > LARGEST_BYTEWISE:
            yield data
            return
        start = 0
        while start < len(data):
            end = start + source.randint(1, largest)
            yield data[start:end]
            start = end

    return feed
