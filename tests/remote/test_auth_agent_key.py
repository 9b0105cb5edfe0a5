"""The agent's key against known answers, and sealed boxes."""

from __future__ import annotations

import base64
import json
import os

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from execserver.remote.auth.agent_key import AgentKey
from execserver.remote.auth.sealed_box import CannotOpen, open_sealed
from execserver.remote.errors import SignInError
from tests.remote.agents import check_assertion
from tests.support.source import ROOT

KNOWN = json.loads((ROOT / "tests" / "wire" / "data" / "noise.json").read_text())["agent_identity"]
FORMS = ("agent_private_key_pkcs8_base64_v1", "agent_private_key_pkcs8_base64_v2_with_public")


@pytest.mark.parametrize("form", FORMS)
def test_both_forms_of_the_key_sign_as_known(form: str) -> None:
    key = AgentKey.from_pkcs8(KNOWN[form])
    stamp, runtime = KNOWN["timestamp"], KNOWN["agent_runtime_id"]
    assert key.sign(f"{runtime}:{stamp}") == KNOWN["task_registration_body"]["signature"]
    header = key.assertion(runtime, KNOWN["task_id"], stamp)
    assert header == KNOWN["authorization_header"]
    assert check_assertion(header, KNOWN["task_id"]) == stamp


def test_the_known_sealed_task_id_opens() -> None:
    known = KNOWN["sealed_task_id"]
    key = AgentKey.from_pkcs8(KNOWN[FORMS[0]])
    assert key.curve25519_secret.hex() == known["curve25519_secret"]
    box = base64.b64decode(known["encrypted_task_id"])
    assert open_sealed(box, key.curve25519_secret) == known["plaintext"].encode()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("!", "base64"),
        ("", "PKCS#8"),
        (base64.b64encode(bytes(48)).decode(), "PKCS#8"),
        (base64.b64encode(base64.b64decode(KNOWN[FORMS[0]]) + b"x").decode(), "PKCS#8"),
    ],
)
def test_what_is_no_key_is_told(text: str, reason: str) -> None:
    with pytest.raises(SignInError, match=f"private key is not valid {reason}"):
        AgentKey.from_pkcs8(text)


@given(st.integers(0, 60), st.integers(0, 7))
def test_a_damaged_box_does_not_open(byte: int, bit: int) -> None:
    box = bytearray(base64.b64decode(KNOWN["sealed_task_id"]["encrypted_task_id"]))
    box[byte % len(box)] ^= 1 << bit
    if byte % len(box) == 31 and bit == 7:
        return  # X25519 ignores this bit; the nonce does not, but both are derived from the same bytes
    with pytest.raises(CannotOpen):
        open_sealed(bytes(box), bytes.fromhex(KNOWN["sealed_task_id"]["curve25519_secret"]))


@pytest.mark.parametrize("box", [b"", bytes(47), bytes(80)])
def test_what_is_no_box_does_not_open(box: bytes) -> None:
    with pytest.raises(CannotOpen):
        open_sealed(box, bytes([5] * 32))


@pytest.mark.parametrize("length", [0, 1, 31, 32, 33, 95, 96, 97, 1000])
def test_any_length_comes_back(length: int) -> None:
    """The tests seal with the same cipher, whose stream the known answer above has checked."""
    from execserver.remote.auth import sealed_box

    secret, plaintext = os.urandom(32), os.urandom(length)
    public = X25519PrivateKey.from_private_bytes(secret).public_key()
    box = seal(plaintext, public, sealed_box)
    assert open_sealed(box, secret) == plaintext


def seal(plaintext: bytes, public: X25519PublicKey, cipher: object) -> bytes:
    import hashlib

    from cryptography.hazmat.primitives.poly1305 import Poly1305

    from execserver.remote.auth.sealed_box import _hsalsa20, _stream

    own = X25519PrivateKey.generate()
    sender, receiver = (
        key.public_bytes(Encoding.Raw, PublicFormat.Raw) for key in (own.public_key(), public)
    )
    nonce = hashlib.blake2b(sender + receiver, digest_size=24).digest()
    key = _hsalsa20(_hsalsa20(own.exchange(public), bytes(16)), nonce[:16])
    stream = _stream(key, nonce[16:], 32 + len(plaintext))
    hidden = bytes(a ^ b for a, b in zip(plaintext, stream[32:], strict=True))
    return sender + Poly1305.generate_tag(stream[:32], hidden) + hidden
