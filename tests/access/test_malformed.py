"""Ten thousand authorisations that are almost right: none gets in, and each is refused with a known text.

Seeded: every run tries the same ones.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator

import pytest

from execserver.access import bearer, signed_token
from execserver.access.bearer import CapabilityToken
from execserver.access.identity import Authenticator, NotAdmitted
from execserver.access.signed_token import Expected, SignedToken
from tests.support.ws_auth import HEADER, SECRET, encoded, sign

COUNT = 10_000
NOW = 1_795_000_000
CLAIMS = {"exp": NOW + 60, "nbf": NOW - 60, "iss": "me", "aud": "you"}
GOOD = {
    "capability": b"Bearer the-capability-token",
    "signed": b"Bearer " + sign(HEADER, CLAIMS).encode(),
}
MAKERS: dict[str, Authenticator] = {
    "capability": CapabilityToken.of("the-capability-token"),
    "signed": SignedToken(SECRET, Expected("me", "you", 0)),
}
TEXTS = {
    *(bearer.MISSING, bearer.UNREADABLE, bearer.WRONG_TOKEN),
    *(signed_token.INVALID, signed_token.EXPIRED, signed_token.NOT_YET),
    *(signed_token.OTHER_ISSUER, signed_token.OTHER_AUDIENCE),
}

Change = Callable[[random.Random, bytes], bytes]


def flipped(dice: random.Random, good: bytes) -> bytes:
    at = dice.randrange(7, len(good))
    return good[:at] + bytes([good[at] ^ 1 << dice.randrange(8)]) + good[at + 1 :]


def cut(dice: random.Random, good: bytes) -> bytes:
    return good[: dice.randrange(len(good))]


def grown(dice: random.Random, good: bytes) -> bytes:
    at = dice.randrange(7, len(good) + 1)
    return good[:at] + bytes(dice.choices(b"=.-_Aa0,;\x00\xff", k=dice.randint(1, 3))) + good[at:]


def swapped(dice: random.Random, good: bytes) -> bytes:
    parts = good[7:].split(b".")
    dice.shuffle(parts)
    return b"Bearer " + b".".join(parts[: dice.randint(0, 3)])


def resigned(dice: random.Random, _good: bytes) -> bytes:
    """Sign good claims with another secret, or bad claims with another algorithm in the header."""
    header = HEADER | {"alg": dice.choice(["none", "None", "HS256 ", "HS384", "RS256", "ES256", "", None, 0])}
    secret = dice.choice([b"", SECRET[::-1], SECRET + b"\n", hashlib.sha256(SECRET).digest()])
    token = sign(header, CLAIMS) if dice.random() < 0.5 else sign(HEADER, CLAIMS, secret)
    return b"Bearer " + token.encode()


def unsigned(dice: random.Random, _good: bytes) -> bytes:
    header = encoded(dice.choice([b'{"alg":"none"}', b'{"alg":"HS256"}', b"{}", b""]))
    return b"Bearer " + header + b"." + encoded(b'{"exp":9999999999}') + b"." + encoded(dice.randbytes(32))


def wrong_claims(dice: random.Random, _good: bytes) -> bytes:
    wrong: list[tuple[str, object]] = [
        ("exp", NOW - dice.randint(2, 10**6)),
        ("exp", str(NOW + 60)),
        ("exp", NOW + 0.5),
        ("nbf", NOW + dice.randint(2, 10**6)),
        ("iss", dice.choice(["Me", "", None, ["me"]])),
        ("aud", dice.choice(["You", "", None, {}, ["me"]])),
    ]
    name, value = dice.choice(wrong)
    return b"Bearer " + sign(HEADER, CLAIMS | {name: value}).encode()


def other_scheme(dice: random.Random, good: bytes) -> bytes:
    return dice.choice([b"Basic ", b"Bearer", b"Bearer\t", b"Bear er ", b"", b"Token "]) + good[7:]


def noise(dice: random.Random, _good: bytes) -> bytes:
    return b"Bearer " + dice.randbytes(dice.randint(0, 200))


CHANGES: list[Change] = [
    *(flipped, cut, grown, swapped, resigned, unsigned, wrong_claims, other_scheme, noise),
]


def malformed(kind: str) -> Iterator[bytes]:
    """Yield authorisations that are not good; other blanks around the good token would be."""
    dice, good = random.Random(f"{kind} 13"), GOOD[kind]
    left = COUNT
    while left:
        changed = dice.choice(CHANGES)(dice, good)
        if changed[:7].lower() == b"bearer " and changed[7:].strip(b" \t") == good[7:]:
            continue
        left -= 1
        yield changed


@pytest.mark.parametrize("kind", MAKERS)
def test_none_of_ten_thousand_malformed_authorisations_gets_in(kind: str) -> None:
    authenticator = MAKERS[kind]
    authenticator.identify(GOOD[kind], NOW)
    for authorization in malformed(kind):
        with pytest.raises(NotAdmitted) as refused:
            authenticator.identify(authorization, NOW)
        assert refused.value.text in TEXTS, authorization
