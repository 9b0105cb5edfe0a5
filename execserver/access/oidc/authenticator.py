"""Lets in whoever shows a token of one OpenID Connect provider for one audience; an `Authenticator`.

The signature is checked before a byte of the payload is read.  The header chooses among the provider's keys
and nothing else: no key and no URL in it is looked at.  What would change the meaning of a token and is not
known here refuses it (`crit`), and so do tokens that are not meant to let their bearer in: those bound to a
key that only their holder has (`cnf`), and those that tell of an event (`events`).
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from execserver.access.bearer import bearer_token
from execserver.access.identity import Identity, NotAdmitted
from execserver.access.jwt_parts import Malformed, decoded, json_object, split
from execserver.access.oidc.keys import Key, KeySource, NoKeys
from execserver.access.verified_tokens import Verified, VerifiedTokens

INVALID = "invalid oidc token"
EXPIRED = "expired oidc token"
NOT_YET = "oidc token is not valid yet"
OTHER_ISSUER = "oidc token issuer mismatch"
OTHER_AUDIENCE = "oidc token audience mismatch"
OTHER_PURPOSE = "oidc token is not meant for a bearer"
UNAVAILABLE = "oidc tokens cannot be checked"

DEFAULT_SKEW_S = 30
MAX_SKEW_S = 300
MAX_TOKEN_BYTES = 8192
MAX_KID = 256
_TYPES = frozenset({"jwt", "at+jwt", "application/jwt", "application/at+jwt"})
# What is no bearer's: RFC 7800 (a proof must come with it), RFC 8417 (a logout, for example).
_NOT_FOR_BEARERS = ("cnf", "events")
_MAX_SUBJECT, _MAX_EMAIL = 255, 254
_EMAIL = re.compile(r"[^\s<>@]+@[^\s<>@]+")


class Expected(NamedTuple):
    """What a token must say: exactly this issuer, and this audience among its own."""

    issuer: str
    audience: str
    skew_s: int = DEFAULT_SKEW_S


class OidcAuthenticator:
    """The tokens of one provider."""

    __slots__ = ("_expected", "_keys", "_known", "may_wait")

    def __init__(self, keys: KeySource, expected: Expected) -> None:
        self.may_wait = keys.may_wait
        self._keys = keys
        self._expected = expected
        self._known = VerifiedTokens()

    def identify(self, authorization: bytes | None, now: float) -> Identity:
        """Return who the token is about; may wait for the provider's keys.  Raises NotAdmitted."""
        token = bearer_token(authorization)
        if len(token) > MAX_TOKEN_BYTES:
            raise NotAdmitted(INVALID)
        try:
            claims = self._verified(token)
        except Malformed:
            raise NotAdmitted(INVALID) from None
        check_claims(claims, self._expected, now)
        return Identity("oidc", name_of(claims))

    def _verified(self, token: bytes) -> dict[str, object]:
        known = self._known.get(token)
        if known is not None and self._find(known.kid, known.algorithm) is known.key:
            return known.claims
        parts = split(token)
        algorithm, kid = _chosen(json_object(parts.header))
        signature = decoded(parts.signature)
        key = self._find(kid, algorithm)
        if key is None or not key.verifies(algorithm, signature, parts.signed):
            raise NotAdmitted(INVALID)
        claims = json_object(parts.payload)
        self._known.add(token, Verified(algorithm, kid, key, claims))
        return claims

    def _find(self, kid: str | None, algorithm: str) -> Key | None:
        try:
            return self._keys.find(kid, algorithm)
        except NoKeys:
            raise NotAdmitted(UNAVAILABLE) from None


def check_claims(claims: dict[str, object], expected: Expected, now: float) -> None:
    """Raise NotAdmitted unless the claims let their bearer in at this time."""
    expires, starts = _time(claims, "exp"), _time(claims, "nbf")
    if expires is None:
        raise NotAdmitted(INVALID)
    if claims.get("iss") != expected.issuer:
        raise NotAdmitted(OTHER_ISSUER)
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if not all(isinstance(each, str) for each in audiences):
        raise NotAdmitted(INVALID)
    if expected.audience not in audiences:
        raise NotAdmitted(OTHER_AUDIENCE)
    if any(name in claims for name in _NOT_FOR_BEARERS):
        raise NotAdmitted(OTHER_PURPOSE)
    if expires + expected.skew_s < now:
        raise NotAdmitted(EXPIRED)
    if starts is not None and starts - expected.skew_s > now:
        raise NotAdmitted(NOT_YET)


def name_of(claims: dict[str, object]) -> str:
    """Return the name of a token's holder: its subject, and its address if the provider has verified it.

    Different subjects have different names, since sessions belong to names.  Raises NotAdmitted where there
    is no subject that can be shown.
    """
    subject, email = claims.get("sub"), claims.get("email")
    if not isinstance(subject, str) or not 0 < len(subject) <= _MAX_SUBJECT or not subject.isprintable():
        raise NotAdmitted(INVALID)
    if "<" in subject:  # it could be another one's name with an address
        raise NotAdmitted(INVALID)
    is_verified = claims.get("email_verified") in (True, "true")
    if not is_verified or not isinstance(email, str) or len(email) > _MAX_EMAIL:
        return subject
    return f"{subject} <{email}>" if email.isprintable() and _EMAIL.fullmatch(email) else subject


def _chosen(header: dict[str, object]) -> tuple[str, str | None]:
    """Return algorithm and name of the key; raise NotAdmitted for a header that is not plain."""
    algorithm, kid, kind = header.get("alg"), header.get("kid"), header.get("typ", "JWT")
    if "crit" in header or not isinstance(algorithm, str):
        raise NotAdmitted(INVALID)
    if not isinstance(kid, str | None) or len(kid or "") > MAX_KID:
        raise NotAdmitted(INVALID)
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        raise NotAdmitted(OTHER_PURPOSE)
    return algorithm, kid


def _time(claims: dict[str, object], name: str) -> float | None:
    """Return a claim in seconds, None where there is none; raise NotAdmitted for anything else."""
    value = claims.get(name)
    if value is None and name not in claims:
        return None
    if type(value) not in (int, float):
        raise NotAdmitted(INVALID)
    assert isinstance(value, int | float)
    try:
        seconds = float(value)
    except OverflowError:
        raise NotAdmitted(INVALID) from None
    if not math.isfinite(seconds):
        raise NotAdmitted(INVALID)
    return seconds
