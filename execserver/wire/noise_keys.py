"""Keys of remote mode: an X25519 and an ML-KEM-768 key that always go together.

Public keys are sent as JSON objects, whose members are checked one by one.  Secret keys stay inside the
objects of `cryptography`, which clears their memory when they are freed; nothing here prints them.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from functools import cached_property
from typing import Final, NamedTuple, Self

from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

SUITE: Final = "Noise_hybridIK_X25519+MLKEM768_AESGCM_SHA256"
"""The tag inside key objects; the name that is hashed into the handshake is another one."""

SECURITY_PROFILE: Final = "noise_hybrid_ik_v1"
"""What registry and executor call this way of protecting streams."""

# The sizes of RFC 7748 and FIPS 203.
X25519_BYTES: Final = 32
SEEDS_BYTES: Final = X25519_BYTES + 64  # and ML-KEM's
MLKEM_PUBLIC_BYTES: Final = 1184
MLKEM_CIPHERTEXT_BYTES: Final = 1088

# In the order of the arguments of `from_bytes`.
_SIZES: Final = {"x25519_public_key": X25519_BYTES, "mlkem768_public_key": MLKEM_PUBLIC_BYTES}


class InvalidKeyObject(ValueError):
    """A value that is no public key of this suite; the text says why."""


class _PublicBytes(NamedTuple):
    x25519: bytes
    mlkem768: bytes


class PublicKeys(_PublicBytes):
    """The public half of one identity: 32 bytes of X25519 and 1184 of ML-KEM-768.

    The loaded keys are kept with it, since a key is checked by loading it.
    """

    def to_json(self) -> dict[str, str]:
        """Return the key object, its members in the contract's order."""
        return {
            "suite": SUITE,
            "x25519_public_key": base64.b64encode(self.x25519).decode(),
            "mlkem768_public_key": base64.b64encode(self.mlkem768).decode(),
        }

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Return the keys of a decoded key object.

        Raises `InvalidKeyObject` for another suite, a missing, unknown or malformed member, or a key that
        cannot be one.
        """
        if not isinstance(value, Mapping):
            raise InvalidKeyObject("a key object must be a JSON object")
        # The reference refuses unknown members of key objects, although it ignores those of other replies.
        unknown = value.keys() - {"suite", *_SIZES}
        if unknown:
            raise InvalidKeyObject(f"a key object has no member {min(map(str, unknown))!r}")
        if value.get("suite") != SUITE:
            raise InvalidKeyObject("a key object of an unsupported suite")
        return cls.from_bytes(*(_decode(value, name, size) for name, size in _SIZES.items()))

    @classmethod
    def from_bytes(cls, x25519: bytes, mlkem768: bytes) -> Self:
        """Return the keys after checking them.  Raises `InvalidKeyObject`."""
        keys = cls(x25519, mlkem768)
        keys.load()  # at once, so that a bad key is refused here and not in the middle of a handshake
        return keys

    def load(self) -> None:
        """Have both halves ready for use, which checks them.  Raises `InvalidKeyObject`."""
        _ = self.x25519_key, self.mlkem768_key

    # Cached in the `__dict__` that this subclass of a named tuple has; equality and hash see the bytes only.
    @cached_property
    def x25519_key(self) -> X25519PublicKey:
        """This half ready for use.  Raises `InvalidKeyObject`."""
        try:
            return X25519PublicKey.from_public_bytes(self.x25519)
        except ValueError:
            raise InvalidKeyObject("a public key that is none") from None

    @cached_property
    def mlkem768_key(self) -> MLKEM768PublicKey:
        """This half ready for use.  Raises `InvalidKeyObject`."""
        try:
            # Loading checks what FIPS 203 asks of a key from a peer: all coefficients are below the modulus.
            return MLKEM768PublicKey.from_public_bytes(self.mlkem768)
        except ValueError:
            raise InvalidKeyObject("a public key that is none") from None


class StaticKeys:
    """An identity or an ephemeral key pair: both secret keys and their public half."""

    __slots__ = ("mlkem768", "public", "x25519")

    # Always both together: a token `e` or `s` moves both halves.
    def __init__(self, x25519: X25519PrivateKey, mlkem768: MLKEM768PrivateKey) -> None:
        self.x25519 = x25519
        self.mlkem768 = mlkem768
        self.public = PublicKeys(
            x25519.public_key().public_bytes_raw(), mlkem768.public_key().public_bytes_raw()
        )

    @classmethod
    def generate(cls) -> Self:
        """Return a new identity."""
        return cls(X25519PrivateKey.generate(), MLKEM768PrivateKey.generate())

    @classmethod
    def from_seeds(cls, x25519_private: bytes | memoryview, mlkem768_seed: bytes | memoryview) -> Self:
        """Return the identity made of 32 bytes of X25519 and the 64 of ML-KEM's `d` and `z`."""
        return cls(
            X25519PrivateKey.from_private_bytes(x25519_private),
            MLKEM768PrivateKey.from_seed_bytes(mlkem768_seed),
        )

    def seeds(self) -> bytes:
        """Return the secret bytes of both, X25519 first: for the program that takes this one's place."""
        return self.x25519.private_bytes_raw() + self.mlkem768.private_bytes_raw()

    # Secret keys must reach neither a log nor a pickle.
    def __repr__(self) -> str:
        return "<StaticKeys>"

    def __reduce__(self) -> str:
        raise TypeError("secret keys are not serialised")


def _decode(value: Mapping[object, object], name: str, size: int) -> bytes:
    text = value.get(name)
    if not isinstance(text, str):
        raise InvalidKeyObject(f"a key object needs the text {name}")
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidKeyObject(f"{name} is not base64") from None
    # `b64decode` ignores stray bits in the last character; here each key has one valid text only.
    if len(key) != size or base64.b64encode(key).decode() != text:
        raise InvalidKeyObject(f"{name} must be the base64 of {size} bytes")
    return key
