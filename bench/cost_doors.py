"""What it costs to connect where the server asks who comes: a row for each kind of token.

The tokens and what the servers compare them with are made in the folder of the measurement.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from functools import partial
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

from bench.cost_rows import SERVER, CostRow, connect

_SECRET = b"0123456789abcdef0123456789abcdef"
_ISSUER, _AUDIENCE = "https://login.example", "bench"
_CLAIMS = {"iss": _ISSUER, "aud": _AUDIENCE, "sub": "ada", "exp": 2**40}

DOORS = [
    CostRow(
        "connect_token",
        "the same with a capability token",
        100,
        partial(connect, token="token"),
        SERVER,
        ("--ws-auth", "capability-token", "--ws-token-file", "{place}/token"),
    ),
    CostRow(
        "connect_jwt",
        "the same with a JWT by HS256",
        100,
        partial(connect, token="jwt"),
        SERVER,
        ("--ws-auth", "signed-bearer-token", "--ws-shared-secret-file", "{place}/secret"),
    ),
    CostRow(
        "connect_oidc",
        "the same with a provider's JWT by RS256",
        100,
        partial(connect, token="oidc"),
        SERVER,
        (
            *("--ws-auth", "oidc", "--oidc-jwks", "{place}/keys.json"),
            *("--oidc-issuer", _ISSUER, "--oidc-audience", _AUDIENCE),
        ),
    ),
]


def lay_files(place: Path) -> None:
    """Write tokens, secret and keys."""
    (place / "token").write_text("a-token-of-the-benchmark")
    (place / "secret").write_bytes(_SECRET)
    signed = _signed("HS256")
    (place / "jwt").write_text(_whole(signed, hmac.digest(_SECRET, signed, hashlib.sha256)))
    key = rsa.generate_private_key(65537, 2048)
    numbers, signed = key.public_key().public_numbers(), _signed("RS256")
    (place / "oidc").write_text(_whole(signed, key.sign(signed, padding.PKCS1v15(), SHA256())))
    jwk = {"kty": "RSA", "kid": "k", "n": _number(numbers.n), "e": _number(numbers.e)}
    (place / "keys.json").write_text(json.dumps({"keys": [jwk]}))


def _signed(algorithm: str) -> bytes:
    header = {"alg": algorithm, "kid": "k", "typ": "JWT"}
    return b".".join(_encoded(json.dumps(part).encode()) for part in (header, _CLAIMS))


def _whole(signed: bytes, signature: bytes) -> str:
    return b".".join((signed, _encoded(signature))).decode()


def _number(value: int) -> str:
    return _encoded(value.to_bytes((value.bit_length() + 7) // 8, "big")).decode()


def _encoded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
