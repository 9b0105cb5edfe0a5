"""Signature algorithms and public keys: which keys are taken, and for which algorithm each may be used.

Pure, over `cryptography`.  The list is closed and asymmetric: neither `none` nor an HMAC is in it, so no
token can have a public key taken for a secret.  A key serves the algorithms of its own kind only; its kind,
and not the token, decides what is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, SHA512, HashAlgorithm

from execserver.access.jwt_parts import Malformed, decoded

Jwk = Mapping[str, object]

_MIN_RSA_BITS, _MAX_RSA_BITS = 2048, 8192
_MAX_EXPONENT = 2**32  # a longer one only makes each check slower
_ED25519_BYTES = 32


class UnusableKey(ValueError):
    """A key of a set is of no use here; the text says why."""


class PublicKey(NamedTuple):
    """One key: `algorithms` are the values of `alg` that it serves."""

    algorithms: frozenset[str]
    check: Callable[[str, bytes, bytes], None]

    def verifies(self, algorithm: str, signature: bytes, signed: bytes) -> bool:
        """Tell whether a signature by this algorithm is the key's; False for one that it does not serve."""
        if algorithm not in self.algorithms:
            return False
        try:
            self.check(algorithm, signature, signed)
        except InvalidSignature:
            return False
        return True


class _Curve(NamedTuple):
    algorithm: str
    curve: ec.EllipticCurve
    digest: HashAlgorithm
    field_bytes: int


_RSA: dict[str, HashAlgorithm] = {
    "RS256": SHA256(),
    "RS384": SHA384(),
    "RS512": SHA512(),
    "PS256": SHA256(),
    "PS384": SHA384(),
    "PS512": SHA512(),
}
_CURVES = {
    "P-256": _Curve("ES256", ec.SECP256R1(), SHA256(), 32),
    "P-384": _Curve("ES384", ec.SECP384R1(), SHA384(), 48),
    "P-521": _Curve("ES512", ec.SECP521R1(), SHA512(), 66),
}
_ED25519 = ("EdDSA", "Ed25519")  # RFC 8037, and its later name of RFC 9864


def public_key(jwk: Jwk) -> PublicKey:
    """Return the key of a JSON Web Key (RFC 7517).  Raises UnusableKey."""
    if jwk.get("use", "sig") != "sig":
        raise UnusableKey("it is not for signatures")
    operations = jwk.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        raise UnusableKey("it is not for checking signatures")
    kind = jwk.get("kty")
    makers = {"RSA": _rsa, "EC": _elliptic, "OKP": _edwards}
    maker = makers.get(kind) if isinstance(kind, str) else None
    if maker is None:
        raise UnusableKey("its kind is unknown, or is no public key")
    try:
        key = maker(jwk)
    except Malformed:
        raise UnusableKey("its numbers are not base64url") from None
    except ValueError as error:
        raise UnusableKey(str(error)) from None
    algorithm = jwk.get("alg")
    if algorithm is None:
        return key
    if not isinstance(algorithm, str) or algorithm not in key.algorithms:
        raise UnusableKey("its algorithm is not taken, or is none of its kind")
    return key._replace(algorithms=frozenset({algorithm}))


def _rsa(jwk: Jwk) -> PublicKey:
    modulus, exponent = (int.from_bytes(_bytes(jwk, name), "big") for name in ("n", "e"))
    if not _MIN_RSA_BITS <= modulus.bit_length() <= _MAX_RSA_BITS:
        raise UnusableKey(f"an RSA key has {_MIN_RSA_BITS} to {_MAX_RSA_BITS} bits")
    if exponent >= _MAX_EXPONENT:
        raise UnusableKey("its exponent is too large")
    key = rsa.RSAPublicNumbers(exponent, modulus).public_key()

    def check(algorithm: str, signature: bytes, signed: bytes) -> None:
        digest = _RSA[algorithm]
        # The salt of a PSS signature has the length of the digest (RFC 7518, section 3.5).
        scheme = (
            padding.PSS(padding.MGF1(digest), digest.digest_size)
            if algorithm.startswith("PS")
            else padding.PKCS1v15()
        )
        key.verify(signature, signed, scheme, digest)

    return PublicKey(frozenset(_RSA), check)


def _elliptic(jwk: Jwk) -> PublicKey:
    name = jwk.get("crv")
    curve = _CURVES.get(name) if isinstance(name, str) else None
    if curve is None:
        raise UnusableKey("its curve is unknown")
    coordinates = [_bytes(jwk, each) for each in ("x", "y")]
    if any(len(each) != curve.field_bytes for each in coordinates):
        raise UnusableKey("its coordinates have another length than its curve's")
    x, y = (int.from_bytes(each, "big") for each in coordinates)
    key = ec.EllipticCurvePublicNumbers(x, y, curve.curve).public_key()  # ValueError off the curve

    def check(_algorithm: str, signature: bytes, signed: bytes) -> None:
        if len(signature) != 2 * curve.field_bytes:
            raise InvalidSignature
        r, s = (
            int.from_bytes(half, "big")
            for half in (signature[: curve.field_bytes], signature[curve.field_bytes :])
        )
        key.verify(encode_dss_signature(r, s), signed, ec.ECDSA(curve.digest))

    return PublicKey(frozenset({curve.algorithm}), check)


def _edwards(jwk: Jwk) -> PublicKey:
    data = _bytes(jwk, "x")
    if jwk.get("crv") != "Ed25519" or len(data) != _ED25519_BYTES:
        raise UnusableKey("its curve is unknown")
    key = ed25519.Ed25519PublicKey.from_public_bytes(data)

    def check(_algorithm: str, signature: bytes, signed: bytes) -> None:
        key.verify(signature, signed)

    return PublicKey(frozenset(_ED25519), check)


def _bytes(jwk: Jwk, name: str) -> bytes:
    value = jwk.get(name)
    if not isinstance(value, str) or not value.isascii():
        raise UnusableKey(f"it has no {name}")
    return decoded(value.encode())
