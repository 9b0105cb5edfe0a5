"""The hybrid Noise IK handshake of remote mode, both ends, and the ciphers it ends in.

    -> skem, e, es, s, ss, payload        3568 bytes and the payload
    <- ekem, skem, e, ee, se, payload     3424 bytes, the payload empty

Every `e` and `s` is a pair of an X25519 and an ML-KEM-768 key, both are static keys of the two ends as well.
A handshake either completes, or raises `HandshakeFailed` and is of no further use; in both cases its keys are
overwritten.
"""

from __future__ import annotations

from typing import Final, Protocol

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from execserver.wire.noise_keys import (
    MLKEM_CIPHERTEXT_BYTES,
    MLKEM_PUBLIC_BYTES,
    X25519_BYTES,
    InvalidKeyObject,
    PublicKeys,
    StaticKeys,
)
from execserver.wire.noise_state import HandshakeFailed, SymmetricState, TransportCipher, wipe

__all__ = [
    "Entropy",
    "HandshakeFailed",
    "Initiator",
    "Responder",
    "SystemEntropy",
    "TransportCipher",
    "prologue",
]

PROTOCOL_NAME: Final = b"Noise_hybridIK_25519+MLKEM768_AESGCM_SHA256"
PROLOGUE_LABEL: Final = "codex-exec-server-relay-noise/v1"
MAX_MESSAGE_BYTES: Final = 65535
MAX_AUTHORIZATION_BYTES: Final = 4096
TAG_BYTES: Final = 16

_S_BYTES: Final = X25519_BYTES + TAG_BYTES, MLKEM_PUBLIC_BYTES + TAG_BYTES
_E_BYTES: Final = X25519_BYTES, MLKEM_PUBLIC_BYTES
MESSAGE1_BYTES: Final = MLKEM_CIPHERTEXT_BYTES + sum(_E_BYTES) + sum(_S_BYTES) + TAG_BYTES
MESSAGE2_BYTES: Final = 2 * MLKEM_CIPHERTEXT_BYTES + TAG_BYTES + sum(_E_BYTES) + TAG_BYTES


class Entropy(Protocol):
    """Where a handshake's chance comes from; tests bring their own."""

    def ephemeral(self) -> StaticKeys:
        """Return a fresh pair of keys."""

    def encapsulate(self, public: PublicKeys) -> tuple[bytes, bytes]:
        """Return (ciphertext, shared secret) for the ML-KEM half of `public`."""


class SystemEntropy:
    """The operating system's random numbers."""

    def ephemeral(self) -> StaticKeys:
        """Return a fresh pair of keys."""
        return StaticKeys.generate()

    def encapsulate(self, public: PublicKeys) -> tuple[bytes, bytes]:
        """Return (ciphertext, shared secret) for the ML-KEM half of `public`."""
        secret, ciphertext = public.mlkem768_key.encapsulate()
        return ciphertext, secret


def prologue(environment_id: str, registration_id: str, stream_id: str) -> bytes:
    """Return what both ends must agree on beforehand: each text with its length in front, 8 bytes."""
    parts = (text.encode() for text in (PROLOGUE_LABEL, environment_id, registration_id, stream_id))
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


class _Reader:
    """Cuts a handshake message into its fields."""

    __slots__ = ("_at", "_message")

    def __init__(self, message: bytes, at_least: int) -> None:
        if not at_least <= len(message) <= MAX_MESSAGE_BYTES:
            raise HandshakeFailed(f"a handshake message of {len(message)} bytes")
        self._message = message
        self._at = 0

    def take(self, size: int) -> bytes:
        self._at += size
        return self._message[self._at - size : self._at]

    def rest(self) -> bytes:
        return self._message[self._at :]


def _dh(private: X25519PrivateKey, public: X25519PublicKey) -> bytearray:
    try:
        return bytearray(private.exchange(public))
    except ValueError:
        raise HandshakeFailed("a public key of low order") from None


class _Handshake:
    """What both ends share: who they are, the transcript, and the ciphers at the end."""

    def __init__(self, static: StaticKeys, prologue: bytes, entropy: Entropy | None) -> None:
        self._static = static
        self._entropy = entropy or SystemEntropy()
        self.state = SymmetricState(PROTOCOL_NAME)
        self.state.mix_hash(prologue)
        self.handshake_hash = b""
        self._ciphers: tuple[TransportCipher, TransportCipher] | None = None

    def _begin(self, responder: PublicKeys) -> None:
        self.state.mix_hash(responder.x25519)
        self.state.mix_hash(responder.mlkem768)

    def _mix_dh(self, private: X25519PrivateKey, public: X25519PublicKey) -> None:
        secret = _dh(private, public)
        self.state.mix_key(secret)
        wipe(secret)

    def _decapsulate(self, keys: StaticKeys, ciphertext: bytes) -> bytes:
        try:
            return keys.mlkem768.decapsulate(ciphertext)
        except ValueError:
            raise HandshakeFailed("a ciphertext that is none") from None

    def _write_e(self, ephemeral: StaticKeys) -> bytes:
        self.state.mix_hash(ephemeral.public.x25519)
        self.state.mix_hash(ephemeral.public.mlkem768)
        return ephemeral.public.x25519 + ephemeral.public.mlkem768

    def _read_e(self, reader: _Reader) -> PublicKeys:
        x25519, mlkem768 = (reader.take(size) for size in _E_BYTES)
        self.state.mix_hash(x25519)
        self.state.mix_hash(mlkem768)
        return _known(x25519, mlkem768, "the peer's ephemeral key")

    def _finish(self) -> None:
        self.handshake_hash = self.state.h
        self._ciphers = self.state.split()

    def _cipher(self, of_responder: bool) -> TransportCipher:
        if self._ciphers is None:
            raise HandshakeFailed("the handshake is not complete")
        return self._ciphers[of_responder]


def _known(x25519: bytes, mlkem768: bytes, whose: str) -> PublicKeys:
    try:
        return PublicKeys.from_bytes(x25519, mlkem768)
    except InvalidKeyObject:
        raise HandshakeFailed(f"{whose} is none") from None


class Initiator(_Handshake):
    """The harness's end; `responder_public` is the executor's key, as the registry gave it."""

    def __init__(
        self,
        static: StaticKeys,
        responder_public: PublicKeys,
        prologue: bytes,
        entropy: Entropy | None = None,
    ) -> None:
        super().__init__(static, prologue, entropy)
        self._responder = responder_public
        self._ephemeral = self._entropy.ephemeral()
        self._begin(responder_public)

    def write_message1(self, payload: bytes) -> bytes:
        """Return the first message; the payload is the authorization, at most 4096 bytes."""
        if len(payload) > MAX_AUTHORIZATION_BYTES:
            raise HandshakeFailed("the authorization is longer than 4096 bytes")
        state, own = self.state, self._static
        ciphertext, secret = self._entropy.encapsulate(self._responder)
        state.mix_hash(ciphertext)
        state.mix_key_and_hash(secret)
        message = ciphertext + self._write_e(self._ephemeral)
        theirs = self._responder.x25519_key
        self._mix_dh(self._ephemeral.x25519, theirs)
        message += state.encrypt_and_hash(own.public.x25519) + state.encrypt_and_hash(own.public.mlkem768)
        self._mix_dh(own.x25519, theirs)
        return message + state.encrypt_and_hash(payload)

    def read_message2(self, message: bytes) -> None:
        """Take the answer; the ciphers are ready then.  Raises `HandshakeFailed`."""
        try:
            self._read_message2(message)
        except HandshakeFailed:
            self.state.clear()
            raise

    def _read_message2(self, message: bytes) -> None:
        reader, state = _Reader(message, MESSAGE2_BYTES), self.state
        ciphertext = reader.take(MLKEM_CIPHERTEXT_BYTES)
        state.mix_hash(ciphertext)
        state.mix_key(self._decapsulate(self._ephemeral, ciphertext))
        sealed = reader.take(MLKEM_CIPHERTEXT_BYTES + TAG_BYTES)
        ciphertext = state.decrypt_and_hash(sealed, "the executor's second ciphertext")
        state.mix_key_and_hash(self._decapsulate(self._static, ciphertext))
        theirs = self._read_e(reader).x25519_key
        self._mix_dh(self._ephemeral.x25519, theirs)
        self._mix_dh(self._static.x25519, theirs)
        if state.decrypt_and_hash(reader.rest(), "the executor's payload"):
            raise HandshakeFailed("the executor's handshake carries a payload")
        self._finish()

    @property
    def send(self) -> TransportCipher:
        """The cipher of what the harness sends.  Raises `HandshakeFailed` before the end."""
        return self._cipher(False)

    @property
    def receive(self) -> TransportCipher:
        """The cipher of what the executor sends."""
        return self._cipher(True)


class Responder(_Handshake):
    """The executor's end.  Write the second message only after the registry knows the harness."""

    def __init__(self, static: StaticKeys, prologue: bytes, entropy: Entropy | None = None) -> None:
        super().__init__(static, prologue, entropy)
        self._begin(static.public)
        self._peer: tuple[PublicKeys, PublicKeys] | None = None

    def read_message1(self, message: bytes) -> tuple[PublicKeys, bytes]:
        """Return the harness's key and its authorization.  Raises `HandshakeFailed`."""
        try:
            return self._read_message1(message)
        except HandshakeFailed:
            self.state.clear()
            raise

    def _read_message1(self, message: bytes) -> tuple[PublicKeys, bytes]:
        reader, state = _Reader(message, MESSAGE1_BYTES), self.state
        ciphertext = reader.take(MLKEM_CIPHERTEXT_BYTES)
        state.mix_hash(ciphertext)
        state.mix_key_and_hash(self._decapsulate(self._static, ciphertext))
        ephemeral = self._read_e(reader)
        self._mix_dh(self._static.x25519, ephemeral.x25519_key)
        own = [state.decrypt_and_hash(reader.take(size), "the harness's key") for size in _S_BYTES]
        static = _known(own[0], own[1], "the harness's key")
        self._mix_dh(self._static.x25519, static.x25519_key)
        payload = state.decrypt_and_hash(reader.rest(), "the authorization")
        self._peer = ephemeral, static
        return static, payload

    def write_message2(self) -> bytes:
        """Return the answer; the ciphers are ready then."""
        if self._peer is None:
            raise HandshakeFailed("there is nothing to answer")
        state, (ephemeral, static) = self.state, self._peer
        ciphertext, secret = self._entropy.encapsulate(ephemeral)
        state.mix_hash(ciphertext)
        state.mix_key(secret)
        message = ciphertext
        ciphertext, secret = self._entropy.encapsulate(static)
        message += state.encrypt_and_hash(ciphertext)
        state.mix_key_and_hash(secret)
        own = self._entropy.ephemeral()
        message += self._write_e(own)
        self._mix_dh(own.x25519, ephemeral.x25519_key)
        self._mix_dh(own.x25519, static.x25519_key)
        message += state.encrypt_and_hash(b"")
        self._finish()
        return message

    def clear(self) -> None:
        """Forget a handshake that will not be answered."""
        self.state.clear()
        self._peer = None

    @property
    def send(self) -> TransportCipher:
        """The cipher of what the executor sends.  Raises `HandshakeFailed` before the end."""
        return self._cipher(True)

    @property
    def receive(self) -> TransportCipher:
        """The cipher of what the harness sends."""
        return self._cipher(False)
