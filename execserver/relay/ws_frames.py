"""The boundaries of WebSocket frames: where received frames end, and the header of a frame to send."""

from __future__ import annotations

from struct import Struct

_SHORT, _MEDIUM, _LONG = Struct(">BB").pack, Struct(">BBH").pack, Struct(">BBQ").pack
_FIN_BINARY = 0x82
_MASKED = 0x80


def binary_header(length: int) -> bytes:
    """Return the header of an unmasked binary message in one frame."""
    if length < 126:
        return _SHORT(_FIN_BINARY, length)
    return _MEDIUM(_FIN_BINARY, 126, length) if length < 65536 else _LONG(_FIN_BINARY, 127, length)


def size_of_frame(data: memoryview) -> int:
    """Return the size of the frame that begins here, or 0 if its header is not complete."""
    if len(data) < 2:
        return 0
    length, head = data[1] & ~_MASKED, 2
    if length >= 126:
        wide = 2 if length == 126 else 8
        if len(data) < head + wide:
            return 0
        length = int.from_bytes(data[head : head + wide], "big")
        head += wide
    return head + (4 if data[1] & _MASKED else 0) + length


def end_of_frames(data: memoryview, limit: int) -> int:
    """Return where the last whole frame ends, or the end of `data` if a frame announces more than the limit.

    Such a frame is passed on incomplete, so that the parser refuses it at once.  Nothing else is checked.
    """
    at, end = 0, len(data)
    while True:
        payload = at + 2
        if payload > end:
            return at
        length = data[at + 1] & ~_MASKED
        if length >= 126:
            wide = 2 if length == 126 else 8
            if payload + wide > end:
                return at
            length = int.from_bytes(data[payload : payload + wide], "big")
            payload += wide
        if length > limit:
            return end
        if data[at + 1] & _MASKED:
            payload += 4
        if payload + length > end:
            return at
        at = payload + length
