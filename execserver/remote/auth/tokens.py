"""JSON Web Tokens: claims read without any check, and RS256 signatures checked against a key set.

Written over `cryptography` alone: one algorithm with a fixed name is all that is ever accepted.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping

import msgspec

_ALPHABET = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
_MIN_RSA_BITS = 2048
LEEWAY_S = 60

Claims = dict[str, object]


class BadToken(ValueError):
    """A text is no token of the expected form; `reason` says what is wrong."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Untrusted(Exception):
    """A token's signature or one of its claims is not valid."""


class UnknownKey(Untrusted):
    """The key that a token names is not in the set."""

    def __init__(self, kid: str) -> None:
        super().__init__(f"kid {kid}")
        self.kid = kid


def from_base64url(text: str) -> bytes:
    """Return the bytes of an unpadded base64url text.  Raises ValueError."""
    if not _ALPHABET.issuperset(text) or len(text) % 4 == 1:
        raise ValueError("not base64url without padding")
    return binascii.a2b_base64(text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4))


def to_base64url(data: bytes) -> str:
    """Return bytes as base64url without padding."""
    text = binascii.b2a_base64(data, newline=False).decode()
    return text.rstrip("=").replace("+", "-").replace("/", "_")


def unverified_claims(token: str) -> Claims:
    """Return the payload of a token without any check of signature or claims.  Raises BadToken."""
    _, payload, _ = _split(token)
    try:
        data = from_base64url(payload)
    except ValueError:
        raise BadToken("payload is not valid base64url") from None
    return _object(data, "payload is not valid JSON")


def verified_claims(
    token: str, keys: Mapping[str, Claims], *, audience: str, issuer: str, now: float
) -> Claims:
    """Return the payload of a token signed with RS256 by one of the keys (by `kid`).

    `now` is in seconds since 1970; `exp` may have passed by LEEWAY_S at most.  Raises Untrusted or BadToken.
    """
    header_text, payload, signature = _split(token)
    try:
        header = _object(from_base64url(header_text), "header")
    except ValueError:
        raise Untrusted("the header is not readable") from None
    kid = header.get("kid")
    if not isinstance(kid, str):
        raise Untrusted("no kid")
    if kid not in keys:
        raise UnknownKey(kid)
    # The token must not choose how it is checked: `none`, or HS256 with the public key as the secret.
    if header.get("alg") != "RS256":
        raise Untrusted(f"the algorithm is not RS256 but {header.get('alg')}")
    _check_signature(keys[kid], f"{header_text}.{payload}".encode(), signature)
    claims = unverified_claims(token)
    _check_claims(claims, audience, issuer, now)
    return claims


def key_set(document: Claims) -> dict[str, Claims]:
    """Return the RSA keys of a JWK set by their `kid`; other keys and those without `kid` are left out.

    Raises BadToken.
    """
    keys = document.get("keys")
    if not isinstance(keys, list):
        raise BadToken("no list of keys")
    return {
        key["kid"]: key
        for key in keys
        if isinstance(key, dict) and key.get("kty") == "RSA" and isinstance(key.get("kid"), str)
    }


def _split(token: str) -> tuple[str, str, str]:
    parts = token.split(".")
    if len(parts) != 3 or not all(parts):
        raise BadToken("format")
    return parts[0], parts[1], parts[2]


def _object(data: bytes, reason: str) -> Claims:
    try:
        return msgspec.json.decode(data, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadToken(reason) from None


def _check_signature(jwk: Claims, signed: bytes, signature: str) -> None:
    # Late: most tokens are only read, and an executor starts without waiting for this.
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicNumbers
    from cryptography.hazmat.primitives.hashes import SHA256

    try:
        numbers = [int.from_bytes(from_base64url(str(jwk[name])), "big") for name in ("e", "n")]
        key = RSAPublicNumbers(*numbers).public_key()
        proof = from_base64url(signature)
    except (KeyError, ValueError) as error:
        raise Untrusted(f"the key or the signature is not readable: {error}") from None
    if key.key_size < _MIN_RSA_BITS:
        raise Untrusted(f"the key has less than {_MIN_RSA_BITS} bits")
    try:
        key.verify(proof, signed, PKCS1v15(), SHA256())
    except InvalidSignature:
        raise Untrusted("the signature does not hold") from None


def _check_claims(claims: Claims, audience: str, issuer: str, now: float) -> None:
    given = claims.get("aud")
    if given != audience and not (isinstance(given, list) and audience in given):
        raise Untrusted("it is meant for another audience")
    if claims.get("iss") != issuer:
        raise Untrusted("it comes from another issuer")
    expires = claims.get("exp")
    if isinstance(expires, bool) or not isinstance(expires, int | float) or now > expires + LEEWAY_S:
        raise Untrusted("it has expired")
