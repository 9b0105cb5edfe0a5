"""Noise's symmetric state and the ciphers that a handshake results in: SHA-256, HKDF, AES-256-GCM.

Nonces are 4 zero bytes and a 64-bit big-endian counter.  Chaining and cipher keys are kept in bytearrays,
which are overwritten when they are replaced or no longer needed.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_SHA256: Final = SHA256()
_KEY_BYTES: Final = 32


class HandshakeFailed(Exception):
    """The peer's message does not match these keys, this prologue or the pattern; the text names the step."""


class TransportCipher:
    """AES-256-GCM with a counter, for one direction; the key is never changed."""

    __slots__ = ("_aead", "counter")

    def __init__(self, key: bytearray) -> None:
        """Take a copy of the 32 bytes of `key` into the cipher; the caller clears its own."""
        self._aead = AESGCM(key)
        self.counter = 0

    def encrypt(self, plaintext: bytes | memoryview) -> bytes:
        """Return the next record."""
        # Twelve big-endian bytes are the four zero bytes and the counter; Noise's AESGCM is big-endian.
        record = self._aead.encrypt(self.counter.to_bytes(12, "big"), plaintext, None)
        self.counter += 1
        return record

    def decrypt(self, record: bytes) -> bytes:
        """Return the content of the next record.  Raises `InvalidTag`, and stays where it was."""
        # Raises before the counter moves, so a forged record does not shift the numbers of the real ones.
        plaintext = self._aead.decrypt(self.counter.to_bytes(12, "big"), record, None)
        self.counter += 1
        return plaintext

    def __repr__(self) -> str:
        return f"<TransportCipher at {self.counter}>"


class SymmetricState:
    """Noise's symmetric state: transcript hash `h`, chaining key `ck`, and a key `k` once there is one."""

    __slots__ = ("_aead", "_nonce", "ck", "h", "k")

    def __init__(self, protocol_name: bytes) -> None:
        # A name of up to 32 bytes would be padded instead of hashed; the only one here has 43.
        self.h = sha256(protocol_name).digest()
        self.ck = bytearray(self.h)
        self.k = bytearray()
        self._aead: AESGCM | None = None
        self._nonce = 0

    def mix_hash(self, data: bytes) -> None:
        """Mix data that both ends have seen into the transcript hash."""
        self.h = sha256(self.h + data).digest()

    def mix_key(self, secret: bytes | bytearray) -> None:
        """Mix a secret into the chaining key; the cipher key and its nonce are new then."""
        ck, k = _hkdf(self.ck, secret, 2)
        self._rekey(ck, k)

    def mix_key_and_hash(self, secret: bytes | bytearray) -> None:
        """Mix a secret into the chaining key, and a value derived from it into the transcript hash."""
        ck, trace, k = _hkdf(self.ck, secret, 3)
        self.mix_hash(bytes(trace))
        wipe(trace)
        self._rekey(ck, k)

    def encrypt_and_hash(self, plaintext: bytes) -> bytes:
        """Return the bytes that `plaintext` becomes in the message: sealed, once there is a key."""
        sealed = plaintext
        if self._aead is not None:
            sealed = self._aead.encrypt(self._take_nonce(), plaintext, self.h)
        self.mix_hash(sealed)
        return sealed

    def decrypt_and_hash(self, sealed: bytes, what: str) -> bytes:
        """Return the plaintext of `sealed`.  Raises `HandshakeFailed` naming `what`."""
        plaintext = sealed
        if self._aead is not None:
            try:
                plaintext = self._aead.decrypt(self._take_nonce(), sealed, self.h)
            except InvalidTag:
                raise HandshakeFailed(f"{what} cannot be decrypted") from None
        # The sealed bytes, not the plaintext: both ends hash what was on the wire.
        self.mix_hash(sealed)
        return plaintext

    def split(self) -> tuple[TransportCipher, TransportCipher]:
        """Return the ciphers for what initiator and responder send, in this order.

        The last payload of the handshake may be sealed or opened after that: it changes `h` alone.
        """
        first, second = _hkdf(self.ck, b"", 2)
        ciphers = TransportCipher(first), TransportCipher(second)
        # The ciphers hold copies of their keys.
        wipe(first, second)
        return ciphers

    # Both ends call it for a handshake that failed, too.
    def clear(self) -> None:
        """Overwrite the keys."""
        wipe(self.ck, self.k)
        self._aead = None

    def _rekey(self, ck: bytearray, k: bytearray) -> None:
        wipe(self.ck, self.k)
        self.ck, self.k = ck, k
        self._aead = AESGCM(k)
        self._nonce = 0

    def _take_nonce(self) -> bytes:
        # A key of the handshake seals two texts in a row: the two halves of a static key.
        self._nonce += 1
        return (self._nonce - 1).to_bytes(12, "big")


def _hkdf(chaining_key: bytearray, material: bytes | bytearray, count: int) -> list[bytearray]:
    """Return `count` keys of 32 bytes.  Noise's HKDF is that of RFC 5869 without `info`."""
    found = bytearray(count * _KEY_BYTES)
    HKDF(algorithm=_SHA256, length=len(found), salt=bytes(chaining_key), info=None).derive_into(
        material, found
    )
    keys = [found[at : at + _KEY_BYTES] for at in range(0, len(found), _KEY_BYTES)]
    # The derived keys are copies of it.
    wipe(found)
    return keys


def wipe(*secrets: bytearray) -> None:
    """Overwrite secrets with zeros."""
    # Assigned to a slice, so the memory itself is overwritten.
    for secret in secrets:
        secret[:] = bytes(len(secret))
