"""Opens libsodium sealed boxes: anonymous X25519, XSalsa20 and Poly1305.

`cryptography` has X25519 and Poly1305.  Only the stream cipher is written here, since one short text at the
start of a run does not justify a further library.
"""

from __future__ import annotations

import hashlib
import struct
from hmac import compare_digest

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.poly1305 import Poly1305
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

_KEY_BYTES = 32
_TAG_BYTES = 16
_BLOCK_BYTES = 64
_SIGMA = struct.unpack("<4I", b"expand 32-byte k")
# Indices of the quarter rounds: columns, then rows.
_QUARTERS = (
    *((0, 4, 8, 12), (5, 9, 13, 1), (10, 14, 2, 6), (15, 3, 7, 11)),
    *((0, 1, 2, 3), (5, 6, 7, 4), (10, 11, 8, 9), (15, 12, 13, 14)),
)
_MASK = 0xFFFF_FFFF


class CannotOpen(ValueError):
    """The box is damaged or was made for another key."""


def open_sealed(box: bytes, secret: bytes) -> bytes:
    """Return what was sealed to the Curve25519 key of `secret` (32 bytes).  Raises CannotOpen."""
    if len(box) < _KEY_BYTES + _TAG_BYTES:
        raise CannotOpen("it is too short")
    own = X25519PrivateKey.from_private_bytes(secret)
    public = own.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    sender, tag, hidden = box[:32], box[32:48], box[48:]
    try:
        shared = own.exchange(X25519PublicKey.from_public_bytes(sender))
    except ValueError:
        raise CannotOpen("its key is degenerate") from None
    # As libsodium derives it: the box carries no nonce.
    nonce = hashlib.blake2b(sender + public, digest_size=24).digest()
    key = _hsalsa20(_hsalsa20(shared, bytes(16)), nonce[:16])
    stream = _stream(key, nonce[16:], _KEY_BYTES + len(hidden))
    if not compare_digest(Poly1305.generate_tag(stream[:_KEY_BYTES], hidden), tag):
        raise CannotOpen("it was damaged or is for another key")
    return bytes(one ^ other for one, other in zip(hidden, stream[_KEY_BYTES:], strict=True))


def _hsalsa20(key: bytes, block: bytes) -> bytes:
    mixed = _rounds(_state(key, block))
    return struct.pack("<8I", *(mixed[at] for at in (0, 5, 10, 15, 6, 7, 8, 9)))


def _stream(key: bytes, nonce: bytes, length: int) -> bytes:
    out = bytearray()
    for counter in range(-(-length // _BLOCK_BYTES)):
        state = _state(key, nonce + counter.to_bytes(8, "little"))
        mixed = _rounds(state)
        out += struct.pack("<16I", *((one + other) & _MASK for one, other in zip(state, mixed, strict=True)))
    return bytes(out[:length])


def _state(key: bytes, block: bytes) -> list[int]:
    words, middle = struct.unpack("<8I", key), struct.unpack("<4I", block)
    return [_SIGMA[0], *words[:4], _SIGMA[1], *middle, _SIGMA[2], *words[4:], _SIGMA[3]]


def _rounds(state: list[int]) -> list[int]:
    x = list(state)
    for _ in range(10):
        for a, b, c, d in _QUARTERS:
            x[b] ^= _rotated(x[a] + x[d], 7)
            x[c] ^= _rotated(x[b] + x[a], 9)
            x[d] ^= _rotated(x[c] + x[b], 13)
            x[a] ^= _rotated(x[d] + x[c], 18)
    return x


def _rotated(value: int, bits: int) -> int:
    value &= _MASK
    return (value << bits | value >> (32 - bits)) & _MASK
