"""The registry's public key objects, checked and reduced to a fingerprint (wire contract, remote mode).

The relay does no cryptography with a key; it passes keys on and compares them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json

SUITE = "Noise_hybridIK_X25519+MLKEM768_AESGCM_SHA256"
SECURITY_PROFILE = "noise_hybrid_ik_v1"

_SIZES = {"x25519_public_key": 32, "mlkem768_public_key": 1184}


class InvalidKey(ValueError):
    """The object is no key of the only suite."""


def key_text(key: object) -> str:
    """Return a key object as compact JSON, its members in the contract's order.

    Raises InvalidKey, also for unknown members: the contract allows none in a key object.
    """
    if not isinstance(key, dict):
        raise InvalidKey("a key is an object")
    if set(key) != {"suite", *_SIZES}:
        raise InvalidKey(f"a key has the members suite, {', '.join(_SIZES)} and no others")
    if key["suite"] != SUITE:
        raise InvalidKey(f"the suite must be {SUITE}")
    for name, size in _SIZES.items():
        if len(_decoded(name, key[name])) != size:
            raise InvalidKey(f"{name} must have {size} bytes")
    return json.dumps({name: key[name] for name in ("suite", *_SIZES)}, separators=(",", ":"))


def fingerprint_of(text: str) -> bytes:
    """Return the fingerprint of a key, from its `key_text`: 32 bytes."""
    return hashlib.sha256(text.encode()).digest()


def _decoded(name: str, value: object) -> bytes:
    if not isinstance(value, str):
        raise InvalidKey(f"{name} must be a text")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidKey(f"{name} must be padded base64 of the standard alphabet") from None
