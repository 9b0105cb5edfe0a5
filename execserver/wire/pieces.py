"""Bytes that wait in pieces, little ones joined.  No I/O."""

from __future__ import annotations

from collections import deque
from typing import Final

JOINED_BYTES: Final = 4096
"""The most bytes of a piece to which more is added: that copies it."""


def append(pieces: deque[bytes], data: bytes) -> None:
    """Append bytes, to the last piece where that stays little.

    Many pieces of a byte or two would take twenty to forty times their room, and as long to go through.
    """
    if pieces and len(pieces[-1]) + len(data) <= JOINED_BYTES:
        pieces[-1] += data
    else:
        pieces.append(data)
