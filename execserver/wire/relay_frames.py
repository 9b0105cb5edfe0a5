"""Relay frames: one protobuf message in each binary WebSocket message of remote mode.

Written by hand: nothing to generate, nothing to load.  Encoding is canonical (fields in number order, zero
scalars left out, the body always written).  Decoding follows proto3: fields in any order, the last of a
repeated field counts, unknown fields are skipped; what the rules of remote mode forbid raises `InvalidFrame`.
Records and handshakes in their canonical form, as nearly all are, take a fast path to the same result.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, TypeAlias

MAX_FRAME_BYTES: Final = 262144
"""The longest frame either end accepts."""

MAX_SEQ: Final = 2**32 - 1
"""A sequence number never wraps; a stream that would need this one ends."""

RESET_PROTOCOL_ERROR: Final = "noise_relay_protocol_error"
"""The reason of every reset that an executor sends."""

RESET_CLOSED: Final = "closed"
"""The reason of an end that is done with a reliable stream."""

RESET_HARNESS_LOST: Final = "harness_disconnected"
"""A relay's reason: the harness's WebSocket is gone.  A reliable stream waits for another one."""

RESET_EXECUTOR_LOST: Final = "executor_disconnected"
"""A relay's reason: the executor's WebSocket is gone.  A reliable stream waits for another one."""

_VERSION: Final = 1
_U32: Final = 2**32 - 1
_ONE_BYTE: Final = tuple([bytes((value,)) for value in range(0x80)])
_VARINT, _FIXED64, _BYTES, _GROUP, _GROUP_END, _FIXED32 = range(6)
_MAX_GROUP_DEPTH: Final = 32
# What the reference server (in Rust) trims as white space; `str.strip` removes four control characters more.
_BLANK: Final = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
_DATA, _ACK, _RESUME, _RESET, _HEARTBEAT, _HANDSHAKE = range(5, 11)


class InvalidFrame(ValueError):
    """Bytes that are no valid relay frame; the text says what is wrong and repeats none of the bytes."""


class Data(NamedTuple):
    """One record of a stream.  A record is always sent whole: segment 0 of 1."""

    seq: int
    payload: bytes
    segment_index: int = 0
    segment_count: int = 1


class AckFrame(NamedTuple):
    """Nothing but the acknowledgement in the frame's head."""


class Resume(NamedTuple):
    """The sender of this wants the records from `next_seq` on."""

    next_seq: int = 0


class Reset(NamedTuple):
    """The stream is over, or the peer has lost its WebSocket; `reason` tells which."""

    reason: str


class Heartbeat(NamedTuple):
    """A sign of life that asks for one."""


class Handshake(NamedTuple):
    """One Noise handshake message."""

    payload: bytes


Body: TypeAlias = Data | AckFrame | Resume | Reset | Heartbeat | Handshake


class RelayFrame(NamedTuple):
    """One frame of the virtual stream `stream_id`; the plain protocol leaves both acknowledgements 0."""

    stream_id: str
    body: Body
    ack: int = 0
    ack_bits: int = 0


def encode_frame(frame: RelayFrame) -> bytes:
    """Return the canonical bytes of a frame.  Raises `InvalidFrame` for one that no peer would accept."""
    stream_id, body, ack, ack_bits = frame
    _check(stream_id, body)
    kind, content = _encode_body(body)
    name = stream_id.encode()
    head = b"\x08\x01\x12" + _varint(len(name)) + name + _scalar(3, ack) + _scalar(4, ack_bits)
    return b"%b%c%b%b" % (head, kind << 3 | _BYTES, _varint(len(content)), content)


def frame_head(stream_id: str) -> bytes:
    """Return the bytes that begin every frame of a stream, for `encode_data`."""
    name = stream_id.encode()
    return b"\x08\x01\x12" + _varint(len(name)) + name


def encode_data(head: bytes, seq: int, payload: bytes, ack: int, ack_bits: int) -> bytes:
    """Return the canonical frame of one non-empty record on the stream of `head`."""
    if not (0 <= seq <= _U32 and 0 <= ack <= _U32 and 0 <= ack_bits <= _U32):
        raise InvalidFrame("a number that has no 32 bits")
    acks = b"\x18" + _varint(ack) if ack else b""
    if ack_bits:
        acks += b"\x20" + _varint(ack_bits)
    number = b"\x08" + _varint(seq) if seq else b""
    length = _varint(len(payload))
    whole = _varint(len(number) + 3 + len(length) + len(payload))
    return b"".join((head, acks, b"*", whole, number, b'\x18\x01"', length, payload))


def decode_frame(data: bytes) -> RelayFrame:
    """Return the frame.  Raises `InvalidFrame`."""
    if len(data) > MAX_FRAME_BYTES:
        raise InvalidFrame(f"longer than {MAX_FRAME_BYTES} bytes")
    # A canonical form is tried first, the one that its 41st byte may begin: it declines what it cannot judge.
    return _CANONICAL.get(data[40:41], _canonical_record)(data) or _decode_any(data)


def _canonical_record(data: bytes) -> RelayFrame | None:
    """Return a record in canonical form with a stream id of the usual length; None for all other frames."""
    found = _CANONICAL_RECORD.match(data)
    if found is None:
        return None
    stream_id, ack, bits, size, seq, payload_size = found.groups()
    payload = data[found.end() :]
    if _value(payload_size) != len(payload) or _value(size) != len(data) - found.end(4):
        return None
    # What the slow path may refuse or decode differently: an empty payload, a blank or non-ASCII stream id.
    if not payload or not stream_id.isascii() or stream_id.isspace():
        return None
    # Without the constructors of the named tuples, a quarter of all this.
    body = _tuple(Data, (_value(seq) & _U32 if seq else 0, payload, 0, 1))
    acks = _value(ack) & _U32 if ack else 0, _value(bits) & _U32 if bits else 0
    return _tuple(RelayFrame, (stream_id.decode("ascii"), body, *acks))


def _canonical_handshake(data: bytes) -> RelayFrame | None:
    """Return a handshake message in canonical form, without acknowledgements; None for all other frames."""
    found = _CANONICAL_HANDSHAKE.match(data)
    if found is None:
        return None
    stream_id, size, payload_size = found.groups()
    begin = found.end()
    if _value(payload_size) != len(data) - begin or _value(size) != len(data) - found.end(2):
        return None
    if begin == len(data) or not stream_id.isascii() or stream_id.isspace():
        return None
    return RelayFrame(stream_id.decode("ascii"), Handshake(data[begin:]))


def _canonical_begin(data: bytes) -> RelayFrame | None:
    """Return the first frame of a stream, a `resume` without a number, in canonical form; else None."""
    found = _CANONICAL_BEGIN.fullmatch(data)
    if found is None or not found[1].isascii() or found[1].isspace():
        return None
    return RelayFrame(found[1].decode("ascii"), Resume())


def _value(varint: bytes) -> int:
    # The groups of seven bits come with the lowest first; nearly all numbers have one or two.
    size = len(varint)
    if size == 1:
        return varint[0]
    if size == 2:
        return varint[0] & 0x7F | varint[1] << 7
    value = varint[-1]
    for byte in varint[-2::-1]:
        value = value << 7 | byte & 0x7F
    return value


def _decode_any(data: bytes) -> RelayFrame:
    head, kind, contents = _scan(data, _HEAD)
    stream_id = _stream_id(head)
    if kind == 0:
        raise InvalidFrame("no body")
    body = _decode_body(kind, contents)
    _check(stream_id, body)
    return RelayFrame(stream_id, body, _number(head, 3), _number(head, 4))


def peek_stream_id(data: bytes) -> str:
    """Return the stream id of a frame, without decoding its body.  Raises `InvalidFrame`.

    It reads the frame as the receiver will (the last `stream_id` counts), so that no sender can have a frame
    routed by one stream id and received under another.
    """
    head, kind, _ = _scan(data, _HEAD)
    if kind == 0:
        raise InvalidFrame("no body")
    return _stream_id(head)


def _check(stream_id: str, body: Body) -> None:
    if not stream_id.strip(_BLANK):
        raise InvalidFrame("blank stream id")
    if isinstance(body, Data):
        if body.segment_index != 0 or body.segment_count != 1:
            raise InvalidFrame("a record in several segments")
        if not body.payload:
            raise InvalidFrame("data without payload")
    elif isinstance(body, Handshake):
        if not body.payload:
            raise InvalidFrame("handshake without payload")
    elif isinstance(body, Reset) and not body.reason:
        raise InvalidFrame("reset without reason")


def _encode_body(body: Body) -> tuple[int, bytes]:
    if isinstance(body, Data):
        seq, payload, index, count = body
        lead = _scalar(1, seq) + _scalar(2, index) + _scalar(3, count)
        return _DATA, b'%b"%b%b' % (lead, _varint(len(payload)), payload)
    if isinstance(body, Handshake):
        return _HANDSHAKE, b"\x0a" + _varint(len(body.payload)) + body.payload
    if isinstance(body, Resume):
        return _RESUME, _scalar(1, body.next_seq)
    if isinstance(body, Reset):
        reason = body.reason.encode()
        return _RESET, b"\x0a" + _varint(len(reason)) + reason
    return (_ACK if isinstance(body, AckFrame) else _HEARTBEAT), b""


def _varint(value: int) -> bytes:
    if value < 0x80:
        return _ONE_BYTE[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x200000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _scalar(number: int, value: int) -> bytes:
    if 0 < value < 0x80:
        return bytes((number << 3, value))
    if not 0 <= value <= _U32:
        raise InvalidFrame(f"{value} is no unsigned 32-bit number")
    return bytes((number << 3,)) + _varint(value) if value else b""


# Varints of up to three bytes are enough for sizes below the frame limit, of up to five for 32-bit numbers.
_SHORT = rb"([\x80-\xff]{0,2}[\x00-\x7f])"
_LONG = rb"([\x80-\xff]{0,4}[\x00-\x7f])"
_CANONICAL_RECORD: Final = re.compile(
    rb"(?s)\x08\x01\x12\x24(.{36})(?:\x18%b)?(?:\x20%b)?\x2a%b(?:\x08%b)?\x18\x01\x22%b"
    % (_LONG, _LONG, _SHORT, _LONG, _SHORT)
)

_CANONICAL_HANDSHAKE: Final = re.compile(rb"(?s)\x08\x01\x12\x24(.{36})\x52%b\x0a%b" % (_SHORT, _SHORT))
_CANONICAL_BEGIN: Final = re.compile(rb"(?s)\x08\x01\x12\x24(.{36})\x3a\x00")

_CANONICAL: Final = {b"\x52": _canonical_handshake, b"\x3a": _canonical_begin}
# The wire type of each known field: of the frame (0 marks the bodies), and of each body.
_HEAD: Final[dict[int, int]] = {1: _VARINT, 2: _BYTES, 3: _VARINT, 4: _VARINT} | dict.fromkeys(
    range(_DATA, _HANDSHAKE + 1), _BYTES
)
_BODIES: Final[dict[int, dict[int, int]]] = {
    _DATA: {1: _VARINT, 2: _VARINT, 3: _VARINT, 4: _BYTES},
    _ACK: {},
    _RESUME: {1: _VARINT},
    _RESET: {1: _BYTES},
    _HEARTBEAT: {},
    _HANDSHAKE: {1: _BYTES},
}
_tuple = tuple.__new__
_Fields: TypeAlias = dict[int, int | bytes]


def _scan(data: bytes, known: dict[int, int]) -> tuple[_Fields, int, list[bytes]]:
    """Return the known fields of a message, the number of the last body (0: none), and that body's pieces."""
    fields: _Fields = {}
    kind = 0
    contents: list[bytes] = []
    at, end = 0, len(data)
    while at < end:
        key, at = _read_varint(data, at)
        number, wire_type = key >> 3, key & 7
        # Protobuf keys have 32 bits, and field numbers begin with 1.
        if number == 0 or key > _U32:
            raise InvalidFrame("a field number that cannot be")
        expected = known.get(number)
        if expected is None:
            at = _skip(data, at, number, wire_type, 0)
            continue
        if expected != wire_type:
            raise InvalidFrame(f"field {number} has the wrong wire type")
        value, at = _read_varint(data, at)
        if wire_type == _VARINT:
            # Proto3 cuts a longer number for a 32-bit field to its lowest bits.
            fields[number] = value & _U32
            continue
        start, at = at, at + value
        if at > end:
            raise InvalidFrame("cut off")
        if known is _HEAD and number >= _DATA:
            # Several pieces of one body are merged; another body replaces it.
            kind, contents = number, ([*contents, data[start:at]] if kind == number else [data[start:at]])
        else:
            fields[number] = data[start:at]
    return fields, kind, contents


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    # A varint has at most 10 bytes: 64 bits in groups of seven.
    for index in range(at, min(at + 10, len(data))):
        byte = data[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= 2**64:
                break
            return value, index + 1
        shift += 7
    raise InvalidFrame("a number is cut off or too long")


def _skip(data: bytes, at: int, number: int, wire_type: int, depth: int) -> int:
    """Return the position after an unknown field whose key was read already."""
    if wire_type == _VARINT:
        return _read_varint(data, at)[1]
    # Groups are obsolete, but a decoder has to skip unknown ones; the depth bounds the recursion.
    if wire_type == _GROUP and depth < _MAX_GROUP_DEPTH:
        while True:
            key, at = _read_varint(data, at)
            if key == number << 3 | _GROUP_END:
                return at
            if key >> 3 == 0:
                raise InvalidFrame("a field number that cannot be")
            at = _skip(data, at, key >> 3, key & 7, depth + 1)
    if wire_type == _BYTES:
        size, at = _read_varint(data, at)
    elif wire_type in (_FIXED64, _FIXED32):
        size = 8 if wire_type == _FIXED64 else 4
    else:
        raise InvalidFrame("a field of a wire type that cannot be")
    if at + size > len(data):
        raise InvalidFrame("cut off")
    return at + size


def _stream_id(head: _Fields) -> str:
    if head.get(1) != _VERSION:
        raise InvalidFrame("not version 1")
    stream_id = _text(head, 2)
    if not stream_id.strip(_BLANK):
        raise InvalidFrame("blank stream id")
    return stream_id


def _decode_body(kind: int, contents: list[bytes]) -> Body:
    fields: _Fields = {}
    for content in contents:
        fields.update(_scan(content, _BODIES[kind])[0])
    if kind == _DATA:
        return Data(_number(fields, 1), _octets(fields, 4), _number(fields, 2), _number(fields, 3))
    if kind == _HANDSHAKE:
        return Handshake(_octets(fields, 1))
    if kind == _RESUME:
        return Resume(_number(fields, 1))
    if kind == _RESET:
        return Reset(_text(fields, 1))
    return AckFrame() if kind == _ACK else Heartbeat()


def _number(fields: _Fields, number: int) -> int:
    value = fields.get(number, 0)
    return value if isinstance(value, int) else 0


def _octets(fields: _Fields, number: int) -> bytes:
    value = fields.get(number, b"")
    return value if isinstance(value, bytes) else b""


def _text(fields: _Fields, number: int) -> str:
    try:
        return _octets(fields, number).decode()
    except UnicodeDecodeError:
        raise InvalidFrame(f"field {number} is not UTF-8") from None
