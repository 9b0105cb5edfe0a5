"""Agent identities of a test: signed tokens, the keys they are checked with, an auth API that checks."""

from __future__ import annotations

import base64
import json
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256

from tests.remote.standin import Asked, Told

SEED = bytes([7] * 32)
PKCS8 = "MC4CAQAwBQYDK2VwBCIEIAcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcH"
NOW = 1_782_129_600.0  # 2026-06-22T12:00:00Z
KID = "key-1"


def b64url(data: bytes) -> str:
    """Encode as tokens do."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unb64url(text: str) -> bytes:
    """Decode what `b64url` made."""
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class Issuer:
    """Signs tokens with an RSA key and publishes it."""

    def __init__(self, bits: int = 2048) -> None:
        self.key: RSAPrivateKey = generate_private_key(65537, bits)

    def jwks(self, kid: str = KID) -> dict[str, Any]:
        """Return the published set, with keys of other kinds in it."""
        numbers = self.key.public_key().public_numbers()
        n, e = (
            b64url(number.to_bytes(-(-number.bit_length() // 8), "big")) for number in (numbers.n, numbers.e)
        )
        return {
            "keys": [
                {"kty": "OKP", "crv": "Ed25519", "kid": "other", "x": "AA"},
                {"kty": "RSA", "kid": kid, "use": "sig", "alg": "RS256", "n": n, "e": e},
            ]
        }

    def token(self, claims: dict[str, Any], **header: object) -> str:
        """Return a signed token; `header` changes or (None) removes members of its header."""
        head = {"alg": "RS256", "typ": "JWT", "kid": KID, **header}
        kept = {name: value for name, value in head.items() if value is not None}
        signed = ".".join(b64url(json.dumps(part).encode()) for part in (kept, claims))
        return f"{signed}.{b64url(self.key.sign(signed.encode(), PKCS1v15(), SHA256()))}"


def claims(**changed: object) -> dict[str, Any]:
    """Return all claims a token must have; None removes one."""
    found: dict[str, Any] = {
        "iss": "https://chatgpt.com/codex-backend/agent-identity",
        "aud": "codex-app-server",
        "iat": NOW,
        "exp": NOW + 3600,
        "agent_runtime_id": "agent-runtime-1",
        "agent_private_key": PKCS8,
        "account_id": "acct-1",
        "chatgpt_user_id": "user-1",
        "email": "a@example.com",
        "plan_type": "pro",
        "chatgpt_account_is_fedramp": False,
        **changed,
    }
    return {name: value for name, value in found.items() if value is not None}


def check_signature(signature: str, text: str) -> None:
    """Fail unless the agent signed this text."""
    try:
        key = Ed25519PrivateKey.from_private_bytes(SEED).public_key()
        key.verify(base64.b64decode(signature, validate=True), text.encode())
    except InvalidSignature:
        raise AssertionError("the signature does not hold") from None


class AuthApi:
    """Answers as both the publisher of keys and the registry of tasks, and verifies what it is sent."""

    def __init__(self, issuer: Issuer) -> None:
        self.issuer = issuer
        self.failures: list[Told] = []
        self.reply: dict[str, Any] = {"task_id": "task-1"}

    def __call__(self, asked: Asked) -> Told:
        """Answer one request."""
        if asked.path.endswith("/jwks"):
            return Told(200, self.issuer.jwks())
        if self.failures:
            return self.failures.pop(0)
        assert asked.path == "/api/v1/agent/agent-runtime-1/task/register"
        check_signature(asked.json["signature"], f"agent-runtime-1:{asked.json['timestamp']}")
        return Told(200, self.reply)


def check_assertion(value: str, task_id: str) -> str:
    """Verify the `authorization` header of a request; return its time."""
    scheme, _, text = value.partition(" ")
    assert scheme == "AgentAssertion"
    raw = unb64url(text)
    envelope = json.loads(raw)
    assert json.dumps(envelope, separators=(",", ":"), sort_keys=True).encode() == raw
    assert envelope["agent_runtime_id"] == "agent-runtime-1"
    assert envelope["task_id"] == task_id
    check_signature(envelope["signature"], f"agent-runtime-1:{task_id}:{envelope['timestamp']}")
    return str(envelope["timestamp"])
