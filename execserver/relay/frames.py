"""What the relay reads of a relay frame: its stream id and its kind, never its content.

Nearly all frames have the canonical form: each field once, in the order of the numbers (wire contract, remote
mode).  Only for those the id is read by its position, and only if nothing can follow the body: a second id
there would be the one that the receiver reads.  All other frames are decoded as their receiver decodes them,
and count as frames of no special kind.
"""

from __future__ import annotations

from execserver.wire.relay_frames import InvalidFrame, RelayFrame, Reset, encode_frame, peek_stream_id

__all__ = ["InvalidFrame", "checked_key", "peek", "reset"]

OTHER, DATA, ACK, RESUME, RESET, HEARTBEAT, HANDSHAKE = 0, 0x2A, 0x32, 0x3A, 0x42, 0x4A, 0x52

_BEGIN = b"\x08\x01\x12"  # version 1, and a stream id
_ACK_FIELDS = (0x18, 0x20)
_BODIES = frozenset((DATA, ACK, RESUME, RESET, HEARTBEAT, HANDSHAKE))
_NOTHING = (b"", OTHER)


def peek(message: bytes) -> tuple[bytes, int]:
    """Return the stream id, as bytes, and the kind of a frame in canonical form; else an empty id.

    Takes 0.9 us instead of the 4 of decoding.  `checked_key`, which a new id has to pass, checks that the id
    is UTF-8 and not blank.
    """
    if message[:3] != _BEGIN:
        return _NOTHING
    try:
        at = 4 + message[3]
        if message[3] >= 0x80:
            return _NOTHING
        tag = message[at]
        while tag in _ACK_FIELDS:
            at += 1
            while message[at] >= 0x80:
                at += 1
            at += 1
            if message[at] <= tag:
                return _NOTHING  # not in order
            tag = message[at]
        if tag not in _BODIES:
            return _NOTHING
        size, shift, at = 0, 0, at + 1
        while message[at] >= 0x80:
            size |= (message[at] & 0x7F) << shift
            shift += 7
            at += 1
        size |= message[at] << shift
    except IndexError:
        return _NOTHING
    return (message[4 : 4 + message[3]], tag) if at + 1 + size == len(message) else _NOTHING


def checked_key(message: bytes, limit: int) -> bytes:
    """Return the stream id of any valid frame, as bytes.  Raises InvalidFrame, also for too long an id."""
    key = peek_stream_id(message).encode()
    if len(key) > limit:
        raise InvalidFrame("the stream id is too long")
    return key


def reset(key: bytes, reason: str) -> bytes:
    """Return a reset frame of a stream."""
    return encode_frame(RelayFrame(key.decode(), Reset(reason)))
