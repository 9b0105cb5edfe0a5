"""The Ed25519 key of an agent: its signatures, and the Curve25519 key that is derived from it."""

from __future__ import annotations

import binascii
import hashlib

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from execserver.remote.auth.tokens import to_base64url
from execserver.remote.errors import SignInError

# PKCS#8 of Ed25519: the bytes before the 32 of the seed, in the form without and with the public key after
# it.  Read by hand because the DER loader of `cryptography` refuses the second form.
_SEED_AT, _SEED_BYTES = 16, 32
_FORMS = {
    48: bytes.fromhex("302e020100300506032b657004220420"),
    83: bytes.fromhex("3051020101300506032b657004220420"),
}


class AgentKey:
    """Signs for one agent; the seed stays in memory only."""

    def __init__(self, seed: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        # The Curve25519 secret of RFC 8032's key expansion: the first half of the hash, clamped.
        scalar = bytearray(hashlib.sha512(seed).digest()[:32])
        scalar[0] &= 248
        scalar[31] = scalar[31] & 127 | 64
        self.curve25519_secret = bytes(scalar)

    @classmethod
    def from_pkcs8(cls, text: str) -> AgentKey:
        """Read the base64 of a DER key of version 1 or 2.  Raises SignInError."""
        try:
            der = binascii.a2b_base64(text.encode(), strict_mode=True)
        except ValueError:
            raise SignInError("stored agent identity private key is not valid base64") from None
        if _FORMS.get(len(der)) != der[:_SEED_AT]:
            raise SignInError("stored agent identity private key is not valid PKCS#8")
        return cls(der[_SEED_AT : _SEED_AT + _SEED_BYTES])

    def sign(self, text: str) -> str:
        """Return the signature over a text, in standard base64."""
        return binascii.b2a_base64(self._key.sign(text.encode()), newline=False).decode()

    def assertion(self, runtime_id: str, task_id: str, timestamp: str) -> str:
        """Return the value of the `authorization` header of one request."""
        # The members in alphabetical order, as the reference writes them.
        envelope = {
            "agent_runtime_id": runtime_id,
            "signature": self.sign(f"{runtime_id}:{task_id}:{timestamp}"),
            "task_id": task_id,
            "timestamp": timestamp,
        }
        return f"AgentAssertion {to_base64url(msgspec.json.encode(envelope))}"
