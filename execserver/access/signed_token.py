"""JSON Web Tokens that are signed with a shared secret: HS256 and nothing else.

Pure.  The signature is checked before a byte of the payload is read, and the work is bounded by the length of
a request head.  The rules and texts are those of the reference server; what it takes and this refuses is
what `jwt_parts` does not read: a member twice anywhere in the JSON, and text that is not UTF-8.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import NamedTuple

from execserver.access.bearer import bearer_token
from execserver.access.identity import Identity, NotAdmitted
from execserver.access.jwt_parts import Malformed, decoded, json_object, split
from execserver.access.verified_tokens import Verified, VerifiedTokens

INVALID = "invalid websocket jwt"
EXPIRED = "expired websocket jwt"
NOT_YET = "websocket jwt is not valid yet"
OTHER_ISSUER = "websocket jwt issuer mismatch"
OTHER_AUDIENCE = "websocket jwt audience mismatch"

DEFAULT_SKEW_S = 30
_ALGORITHM = "HS256"
_MAX_INTEGER = 2**63 - 1
_MAX_NAME = 128
_WITHOUT_SUBJECT = "jwt"


class Expected(NamedTuple):
    """What a token must say; None: anything."""

    issuer: str | None = None
    audience: str | None = None
    skew_s: int = DEFAULT_SKEW_S


class SignedToken:
    """Whoever has a token signed with the secret may connect; an `Authenticator`."""

    __slots__ = ("_expected", "_known", "_secret")
    may_wait = False

    def __init__(self, secret: bytes, expected: Expected) -> None:
        self._secret = secret
        self._expected = expected
        self._known = VerifiedTokens()

    def identify(self, authorization: bytes | None, now: float) -> Identity:
        """Return the token's subject; raise NotAdmitted."""
        try:
            claims = self._verified(bearer_token(authorization))
        except Malformed:
            raise NotAdmitted(INVALID) from None
        check_claims(claims, self._expected, now)
        return Identity("jwt", subject_of(claims))

    def _verified(self, token: bytes) -> dict[str, object]:
        known = self._known.get(token)
        if known is not None:
            return known.claims
        parts = split(token)
        _check_header(json_object(parts.header))
        wanted = hmac.digest(self._secret, parts.signed, hashlib.sha256)
        if not hmac.compare_digest(decoded(parts.signature), wanted):
            raise NotAdmitted(INVALID)
        claims = json_object(parts.payload)
        self._known.add(token, Verified(_ALGORITHM, None, None, claims))
        return claims


def check_claims(claims: dict[str, object], expected: Expected, now: float) -> None:
    """Raise NotAdmitted unless the claims hold at this time, for this issuer and audience."""
    expires, starts = _time(claims.get("exp")), _time(claims.get("nbf"))
    issuer, audience = claims.get("iss"), claims.get("aud")
    if expires is None or not isinstance(issuer, str | None):
        raise NotAdmitted(INVALID)
    audiences = audience if isinstance(audience, list) else [] if audience is None else [audience]
    if not all(isinstance(each, str) for each in audiences):
        raise NotAdmitted(INVALID)
    moment = int(now)
    if expires + expected.skew_s < moment:
        raise NotAdmitted(EXPIRED)
    if starts is not None and starts - expected.skew_s > moment:
        raise NotAdmitted(NOT_YET)
    if expected.issuer is not None and issuer != expected.issuer:
        raise NotAdmitted(OTHER_ISSUER)
    if expected.audience is not None and expected.audience not in audiences:
        raise NotAdmitted(OTHER_AUDIENCE)


def subject_of(claims: dict[str, object]) -> str:
    """Return the name of a token's holder for logs and lists: its subject, where that can be shown."""
    subject = claims.get("sub")
    if isinstance(subject, str) and 0 < len(subject) <= _MAX_NAME and subject.isprintable():
        return subject
    return _WITHOUT_SUBJECT


def _check_header(header: dict[str, object]) -> None:
    # `crit` is not looked at, as at the reference: no extension changes what is checked here.
    if header.get("alg") != _ALGORITHM:
        raise NotAdmitted(INVALID)
    for name in ("typ", "kid"):
        if not isinstance(header.get(name), str | None):
            raise NotAdmitted(INVALID)


def _time(value: object) -> int | None:
    """Return a claim in whole seconds, None where there is none; raise NotAdmitted for anything else."""
    if value is None:
        return None
    if type(value) is not int or not -_MAX_INTEGER - 1 <= value <= _MAX_INTEGER:
        raise NotAdmitted(INVALID)
    return value
