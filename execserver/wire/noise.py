"""The hybrid Noise IK handshake of remote mode, both ends, and the ciphers it results in.

    -> skem, e, es, s, ss, payload        3568 bytes and the payload
    <- ekem, skem, e, ee, se, payload     3424 bytes, the payload empty or `REJECTED`

Every `e` and `s` is a pair of an X25519 and an ML-KEM-768 key; so are the static keys of the two ends.
A handshake either completes, or raises `HandshakeFailed` and cannot be used again; in both cases its keys are
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
    "REJECTED",
    "Entropy",
    "EntropyAhead",
    "HandshakeFailed",
    "Initiator",
    "RejectedByRegistry",
    "Responder",
    "SystemEntropy",
    "TransportCipher",
    "prologue",
]

# Hashed into the transcript.  The suite tag in key objects writes `X25519`; this name must not, since the
# reference's Noise library calls the curve `25519`.  With the tag here, every handshake would fail.
PROTOCOL_NAME: Final = b"Noise_hybridIK_25519+MLKEM768_AESGCM_SHA256"
PROLOGUE_LABEL: Final = "codex-exec-server-relay-noise/v1"
REJECTED: Final = b"codex-registry-authentication-rejected/v1"
"""The payload of a second message that ends the stream: the registry does not know the harness."""
MAX_MESSAGE_BYTES: Final = 65535
MAX_AUTHORIZATION_BYTES: Final = 4096
TAG_BYTES: Final = 16

# A static key is sent as two sealed halves, each with a tag of its own; ephemeral keys are sent in the clear.
_S_BYTES: Final = X25519_BYTES + TAG_BYTES, MLKEM_PUBLIC_BYTES + TAG_BYTES
_E_BYTES: Final = X25519_BYTES, MLKEM_PUBLIC_BYTES
_EPHEMERAL: Final = "the peer's ephemeral key"
# The shortest messages: their payloads may be empty.
MESSAGE1_BYTES: Final = MLKEM_CIPHERTEXT_BYTES + sum(_E_BYTES) + sum(_S_BYTES) + TAG_BYTES
MESSAGE2_BYTES: Final = 2 * MLKEM_CIPHERTEXT_BYTES + TAG_BYTES + sum(_E_BYTES) + TAG_BYTES


class RejectedByRegistry(HandshakeFailed):
    """The executor answered that the registry refuses the harness's authentication."""


class Entropy(Protocol):
    """The source of a handshake's randomness; tests bring their own."""

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
        # `cryptography` returns the secret first, most other libraries the ciphertext.
        secret, ciphertext = public.mlkem768_key.encapsulate()
        return ciphertext, secret


class EntropyAhead(SystemEntropy):
    """Has the keys of one more handshake ready: making them is a third of what its message takes."""

    __slots__ = ("spare",)

    def __init__(self) -> None:
        self.spare: StaticKeys | None = None

    def ephemeral(self) -> StaticKeys:
        """See `SystemEntropy`; every pair is for one handshake."""
        spare, self.spare = self.spare, None
        return super().ephemeral() if spare is None else spare

    def make_ahead(self) -> None:
        """Make them, unless they are there."""
        if self.spare is None:
            self.spare = super().ephemeral()


def prologue(environment_id: str, registration_id: str, stream_id: str) -> bytes:
    """Return the data that both ends must agree on: each text after its length (8 bytes, big-endian).

    It binds the handshake to this stream, so that a relay cannot replay it on another one.
    """
    parts = (text.encode() for text in (PROLOGUE_LABEL, environment_id, registration_id, stream_id))
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


class _Reader:
    """Cuts a handshake message into its fields; raises `HandshakeFailed` for a wrong length."""

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
        # A copy that can be overwritten; nothing can overwrite the `bytes` that `cryptography` hands out.
        return bytearray(private.exchange(public))
    except ValueError:
        # OpenSSL refuses an all-zero shared secret, which only such a key gives.
        raise HandshakeFailed("a public key of low order") from None


class _Handshake:
    """The common part of both ends: the static keys, the transcript, and the ciphers at the end."""

    def __init__(self, static: StaticKeys, prologue: bytes, entropy: Entropy | None) -> None:
        self._static = static
        self._entropy = entropy or SystemEntropy()
        self.state = SymmetricState(PROTOCOL_NAME)
        self.state.mix_hash(prologue)
        self.handshake_hash = b""
        self._ciphers: tuple[TransportCipher, TransportCipher] | None = None

    def _begin(self, responder: PublicKeys) -> None:
        # The pre-message `<- s`: the harness knows the executor's key from the registry.
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
        # Each half is hashed for itself.  Without a pre-shared key, Noise mixes `e` into the hash only.
        self.state.mix_hash(ephemeral.public.x25519)
        self.state.mix_hash(ephemeral.public.mlkem768)
        return ephemeral.public.x25519 + ephemeral.public.mlkem768

    def _read_e(self, reader: _Reader) -> PublicKeys:
        x25519, mlkem768 = (reader.take(size) for size in _E_BYTES)
        self.state.mix_hash(x25519)
        self.state.mix_hash(mlkem768)
        return PublicKeys(x25519, mlkem768)

    def _finish(self) -> None:
        self.handshake_hash = self.state.h
        self._ciphers = self._ciphers or self.state.split()
        self.state.clear()

    def _cipher(self, of_responder: bool) -> TransportCipher:
        # They may be there before the last payload is written or checked.
        if self._ciphers is None or not self.handshake_hash:
            raise HandshakeFailed("the handshake is not complete")
        return self._ciphers[of_responder]


def _check(key: PublicKeys, whose: str) -> None:
    """Load a key, which checks it.  Raises `HandshakeFailed`."""
    try:
        key.load()
    except InvalidKeyObject:
        raise HandshakeFailed(f"{whose} is none") from None


class Initiator(_Handshake):
    """The harness's end; `responder_public` is the executor's key that the registry returned."""

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
        """Return the first message; the payload is the authorization, at most 4096 bytes.

        Raises `HandshakeFailed` for a longer one.
        """
        if len(payload) > MAX_AUTHORIZATION_BYTES:
            raise HandshakeFailed("the authorization is longer than 4096 bytes")
        state, own = self.state, self._static
        # skem comes first: what is on the wire differs here from published descriptions of the pattern.
        # No key exists yet, so the ciphertext is sent in the clear.
        ciphertext, secret = self._entropy.encapsulate(self._responder)
        state.mix_hash(ciphertext)
        state.mix_key_and_hash(secret)
        message = ciphertext + self._write_e(self._ephemeral)
        theirs = self._responder.x25519_key
        self._mix_dh(self._ephemeral.x25519, theirs)  # es
        message += state.encrypt_and_hash(own.public.x25519) + state.encrypt_and_hash(own.public.mlkem768)
        self._mix_dh(own.x25519, theirs)  # ss
        return message + state.encrypt_and_hash(payload)

    def read_message2(self, message: bytes) -> None:
        """Take the second message; the ciphers are ready then.  Raises `HandshakeFailed`."""
        try:
            self._read_message2(message)
        except HandshakeFailed:
            self.state.clear()
            raise

    def _read_message2(self, message: bytes) -> None:
        reader, state = _Reader(message, MESSAGE2_BYTES), self.state
        # ekem is mixed with MixKey, unlike both skem, whose secrets go into the transcript as well.
        ciphertext = reader.take(MLKEM_CIPHERTEXT_BYTES)
        state.mix_hash(ciphertext)
        state.mix_key(self._decapsulate(self._ephemeral, ciphertext))
        sealed = reader.take(MLKEM_CIPHERTEXT_BYTES + TAG_BYTES)
        ciphertext = state.decrypt_and_hash(sealed, "the executor's second ciphertext")
        state.mix_key_and_hash(self._decapsulate(self._static, ciphertext))
        # The ML-KEM half of the executor's ephemeral key is sent, but no token uses it.
        ephemeral = self._read_e(reader)
        _check(ephemeral, _EPHEMERAL)
        theirs = ephemeral.x25519_key
        self._mix_dh(self._ephemeral.x25519, theirs)  # ee
        self._mix_dh(self._static.x25519, theirs)  # se
        payload = state.decrypt_and_hash(reader.rest(), "the executor's payload")
        if payload == REJECTED:
            raise RejectedByRegistry("the registry rejected this client's authentication")
        # The reference's harness refuses any other payload, too.
        if payload:
            raise HandshakeFailed("the executor's handshake carries a payload")
        self._finish()

    @property
    def send(self) -> TransportCipher:
        """The cipher for what the harness sends.  Raises `HandshakeFailed` before the end."""
        return self._cipher(False)

    @property
    def receive(self) -> TransportCipher:
        """The cipher for what the executor sends.  Raises `HandshakeFailed` before the end."""
        return self._cipher(True)


class Responder(_Handshake):
    """The executor's end.  Write the second message only after the registry has let the harness in."""

    def __init__(self, static: StaticKeys, prologue: bytes, entropy: Entropy | None = None) -> None:
        super().__init__(static, prologue, entropy)
        self._begin(static.public)
        self._peer: tuple[PublicKeys, PublicKeys] | None = None
        self._prepared = b""  # the second message without its payload

    def read_message1(self, message: bytes) -> tuple[PublicKeys, bytes]:
        """Return the harness's public key and its authorization.  Raises `HandshakeFailed`.

        The key is proven here, by `ss`; whether it may connect is for the registry to say.  The ML-KEM halves
        of the harness's keys are checked by `prepare_message2`, the first that uses them.
        """
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
        self._mix_dh(self._static.x25519, ephemeral.x25519_key)  # es
        own = [state.decrypt_and_hash(reader.take(size), "the harness's key") for size in _S_BYTES]
        static = PublicKeys(*own)
        self._mix_dh(self._static.x25519, static.x25519_key)  # ss
        payload = state.decrypt_and_hash(reader.rest(), "the authorization")
        self._peer = ephemeral, static
        return static, payload

    def write_message2(self, payload: bytes = b"") -> bytes:
        """Return the second message; the ciphers are ready then.

        Raises `HandshakeFailed` as `prepare_message2` does.
        """
        self.prepare_message2()
        message = self._prepared + self.state.encrypt_and_hash(payload)
        self._finish()
        return message

    def prepare_message2(self) -> None:
        """Make all of the second message but its payload, and the ciphers: nearly all of the work.

        Raises `HandshakeFailed` unless a first message was read, or if its keys are none.
        """
        if self._prepared:
            return
        if self._peer is None:
            raise HandshakeFailed("there is nothing to answer")
        try:
            self._prepare(*self._peer)
        except HandshakeFailed:
            self.clear()
            raise

    def _prepare(self, ephemeral: PublicKeys, static: PublicKeys) -> None:
        _check(ephemeral, _EPHEMERAL)
        _check(static, "the harness's key")
        state = self.state
        ciphertext, secret = self._entropy.encapsulate(ephemeral)
        state.mix_hash(ciphertext)
        state.mix_key(secret)
        message = ciphertext
        # The second ciphertext is sealed already, and so says nothing about the harness's static key.
        ciphertext, secret = self._entropy.encapsulate(static)
        message += state.encrypt_and_hash(ciphertext)
        state.mix_key_and_hash(secret)
        own = self._entropy.ephemeral()
        message += self._write_e(own)
        self._mix_dh(own.x25519, ephemeral.x25519_key)  # ee
        self._mix_dh(own.x25519, static.x25519_key)  # se
        self._ciphers = state.split()
        self._prepared = message

    def clear(self) -> None:
        """Overwrite the keys of a handshake that will not be answered."""
        self.state.clear()
        self._peer = self._ciphers = None
        self._prepared = b""

    @property
    def send(self) -> TransportCipher:
        """The cipher for what the executor sends.  Raises `HandshakeFailed` before the end."""
        return self._cipher(True)

    @property
    def receive(self) -> TransportCipher:
        """The cipher for what the harness sends.  Raises `HandshakeFailed` before the end."""
        return self._cipher(False)
