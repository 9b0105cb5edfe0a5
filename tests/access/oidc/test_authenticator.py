"""Who gets in with a provider's token, and the tricks that get nobody in."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from execserver.access import bearer
from execserver.access.identity import Identity, NotAdmitted
from execserver.access.oidc import authenticator as oidc
from execserver.access.oidc.authenticator import Expected, OidcAuthenticator
from execserver.access.oidc.key_set import read_key_set
from execserver.access.oidc.keys import Key, NoKeys
from tests.support.oidc import SigningKey, ec_key, ed_key, encoded, key_set, rsa_key

NOW = 1_795_000_000.0
ISSUER = "https://login.example/tenant"
RSA, EC, ED = rsa_key(), ec_key(), ed_key()
STRANGER = rsa_key()
CLAIMS: dict[str, Any] = {"iss": ISSUER, "aud": "box", "sub": "ada", "exp": int(NOW) + 60}
KEYS = read_key_set(key_set(RSA, EC, ED))
ASKING = OidcAuthenticator(KEYS, Expected(ISSUER, "box"))
TEXTS = {
    *(bearer.MISSING, bearer.UNREADABLE, oidc.INVALID, oidc.EXPIRED, oidc.NOT_YET),
    *(oidc.OTHER_ISSUER, oidc.OTHER_AUDIENCE, oidc.OTHER_PURPOSE),
}


def identify(token: str, asking: OidcAuthenticator = ASKING, now: float = NOW) -> Identity:
    return asking.identify(f"Bearer {token}".encode(), now)


def refusal(token: str, asking: OidcAuthenticator = ASKING, now: float = NOW) -> str:
    with pytest.raises(NotAdmitted) as refused:
        identify(token, asking, now)
    return refused.value.text


@pytest.mark.parametrize("key", [RSA, EC, ED], ids=lambda key: str(key.algorithm))
def test_a_token_of_each_algorithm_gets_in(key: SigningKey) -> None:
    assert identify(key.token(CLAIMS)) == Identity("oidc", "ada")
    assert identify(key.token(CLAIMS, typ="at+jwt")).name == "ada"
    assert identify(key.token(CLAIMS, typ=None, kid=None)).name == "ada"  # the only key of its algorithm
    assert refusal(key.token(CLAIMS, kid="another")) == oidc.INVALID


@pytest.mark.parametrize(
    "algorithm", ["none", "None", "", "HS256", "HS512", "RS1", "EdDSA", "ES256", None, 5, []]
)
def test_no_token_chooses_how_it_is_checked(algorithm: object) -> None:
    assert refusal(RSA.token(CLAIMS, alg=algorithm, kid="rsa")) == oidc.INVALID
    unsigned = RSA.token(CLAIMS, alg=algorithm).rpartition(".")[0] + "."
    assert refusal(unsigned) == oidc.INVALID


@pytest.mark.parametrize("algorithm", ["RS384", "RS512", "PS256", "Ed25519"])
def test_a_signature_by_another_algorithm_of_the_same_key_does_not_hold(algorithm: str) -> None:
    assert refusal(RSA.token(CLAIMS, alg=algorithm)) == oidc.INVALID


def hmac_of(secret: bytes, data: bytes) -> bytes:
    return hmac.digest(secret, data, hashlib.sha256)


@pytest.mark.parametrize("kid", ["rsa", "ec", "ed", None])
@pytest.mark.parametrize("algorithm", ["HS256", "RS256", "ES256"])
def test_a_public_key_is_no_secret(kid: str | None, algorithm: str) -> None:
    """Whoever signs with the key that everybody can read, as if it were a shared secret, is refused."""
    secrets = [json.dumps(RSA.jwk).encode(), base64.urlsafe_b64decode(RSA.jwk["n"] + "=="), b""]
    for secret in secrets:
        forged = SigningKey(algorithm, kid, {}, partial(hmac_of, secret))
        assert refusal(forged.token(CLAIMS)) == oidc.INVALID


@pytest.mark.parametrize(
    "kid",
    ["../../dev/null", "/etc/passwd", "rsa\0", "RSA", "' OR 1=1 --", "", "k" * 257, "é", 0, ["rsa"], {}],
)
def test_a_key_name_is_a_name_and_nothing_else(kid: object) -> None:
    assert refusal(RSA.token(CLAIMS, kid=kid)) == oidc.INVALID


def test_no_key_comes_with_a_token() -> None:
    for header in ({"jwk": STRANGER.jwk}, {"jku": "http://127.0.0.1:1/"}, {"x5u": "http://127.0.0.1:1/"}):
        assert refusal(STRANGER.token(CLAIMS, kid="rsa", **header)) == oidc.INVALID
        assert identify(RSA.token(CLAIMS, **header)).name == "ada"  # not looked at


def test_what_would_change_its_meaning_refuses_a_token() -> None:
    assert refusal(RSA.token(CLAIMS, crit=["b64"], b64=False)) == oidc.INVALID
    assert refusal(RSA.token(CLAIMS, crit=[])) == oidc.INVALID
    for kind in ("logout+jwt", "dpop+jwt", "secevent+jwt", "JWE", "", 1):
        assert refusal(RSA.token(CLAIMS, typ=kind)) == oidc.OTHER_PURPOSE
    assert refusal(RSA.token(CLAIMS | {"events": {}})) == oidc.OTHER_PURPOSE
    assert refusal(RSA.token(CLAIMS | {"cnf": {"jkt": "x"}})) == oidc.OTHER_PURPOSE


@pytest.mark.parametrize(
    ("claims", "text"),
    [
        ({"iss": ISSUER + "/"}, oidc.OTHER_ISSUER),
        ({"iss": ISSUER.upper()}, oidc.OTHER_ISSUER),
        ({"iss": [ISSUER]}, oidc.OTHER_ISSUER),
        ({"iss": None}, oidc.OTHER_ISSUER),
        ({"aud": "Box"}, oidc.OTHER_AUDIENCE),
        ({"aud": ""}, oidc.OTHER_AUDIENCE),
        ({"aud": []}, oidc.OTHER_AUDIENCE),
        ({"aud": ["other", "box2"]}, oidc.OTHER_AUDIENCE),
        ({"aud": ["box", 1]}, oidc.INVALID),
        ({"aud": {"box": 1}}, oidc.INVALID),
        ({"aud": None}, oidc.INVALID),
        ({"exp": None}, oidc.INVALID),
        ({"exp": str(int(NOW) + 60)}, oidc.INVALID),
        ({"exp": True}, oidc.INVALID),
        ({"exp": 10**400}, oidc.INVALID),
        ({"nbf": "now"}, oidc.INVALID),
        ({"nbf": None}, oidc.INVALID),
        ({"sub": None}, oidc.INVALID),
        ({"sub": ""}, oidc.INVALID),
        ({"sub": "a\nb"}, oidc.INVALID),
        ({"sub": "a" * 256}, oidc.INVALID),
        ({"sub": "eve <ada@example.org>"}, oidc.INVALID),
    ],
)
def test_a_claim_that_does_not_hold_keeps_its_bearer_out(claims: dict[str, Any], text: str) -> None:
    assert refusal(RSA.token(CLAIMS | claims)) == text


@pytest.mark.parametrize("name", ["iss", "aud", "exp", "sub"])
def test_a_claim_that_is_not_there_keeps_its_bearer_out(name: str) -> None:
    left = {each: value for each, value in CLAIMS.items() if each != name}
    assert refusal(RSA.token(left)) in (oidc.INVALID, oidc.OTHER_ISSUER)


def test_one_of_two_audiences_is_enough_and_one_of_two_members_is_none() -> None:
    assert identify(RSA.token(CLAIMS | {"aud": ["other", "box"]})).name == "ada"
    text = json.dumps(CLAIMS).encode()
    twice = text[:-1] + b', "aud": "other"}'
    assert refusal(RSA.token(twice)) == oidc.INVALID
    nested = text[:-1] + b', "x": {"a": 1, "a": 2}}'
    assert refusal(RSA.token(nested)) == oidc.INVALID
    assert refusal(RSA.raw(b'{"alg":"none","kid":"rsa","alg":"RS256"}', text)) == oidc.INVALID


def test_clocks_may_differ_by_the_skew_and_no_more() -> None:
    token = RSA.token(CLAIMS | {"nbf": int(NOW), "exp": NOW + 60.5})
    assert identify(token, now=NOW + 90).name == "ada"
    assert refusal(token, now=NOW + 91) == oidc.EXPIRED
    assert identify(token, now=NOW - 30).name == "ada"
    assert refusal(token, now=NOW - 31) == oidc.NOT_YET
    exact = OidcAuthenticator(KEYS, Expected(ISSUER, "box", 0))
    assert refusal(token, exact, NOW + 61) == oidc.EXPIRED
    for endless in (b"1e999", b"Infinity", b"NaN"):
        claims = json.dumps(CLAIMS).encode().replace(b"%d" % CLAIMS["exp"], endless)
        assert refusal(RSA.token(claims)) == oidc.INVALID


def test_a_verified_address_stands_beside_the_subject() -> None:
    both = {"email": "ada@example.org", "email_verified": True}
    assert identify(RSA.token(CLAIMS | both)).name == "ada <ada@example.org>"
    for claims in (
        {"email": "ada@example.org"},
        both | {"email_verified": False},
        both | {"email": "root@box> <ada@example.org"},
        both | {"email": "a\n@b"},
        both | {"email": ["ada@example.org"]},
    ):
        assert identify(RSA.token(CLAIMS | claims)).name == "ada"


def test_a_token_longer_than_any_is_not_read() -> None:
    assert refusal(RSA.token(CLAIMS | {"x": "x" * 8192})) == oidc.INVALID
    assert refusal(RSA.token(b"[" * 5000)) == oidc.INVALID
    assert refusal(RSA.token(b'{"exp":' + b"9" * 5000 + b"}")) == oidc.INVALID


class Counting:
    """A source of keys that counts who asks it, and one without any."""

    may_wait = True

    def __init__(self, has_keys: bool = True) -> None:
        self.asked = 0
        self.has_keys = has_keys
        self.keys = KEYS

    def find(self, kid: str | None, algorithm: str) -> Key | None:
        self.asked += 1
        if not self.has_keys:
            raise NoKeys("none")
        return self.keys.find(kid, algorithm)


def test_without_keys_nobody_gets_in() -> None:
    asking = OidcAuthenticator(Counting(has_keys=False), Expected(ISSUER, "box"))
    assert refusal(RSA.token(CLAIMS), asking) == oidc.UNAVAILABLE


OTHERS = [key.token(CLAIMS | {"sub": "eve"}).split(".") for key in (STRANGER, RSA, EC, ED)]


def test_a_token_that_was_good_is_judged_anew_but_for_its_signature() -> None:
    first, second = rsa_key("k"), rsa_key("k")
    source = Counting()
    source.keys = read_key_set(key_set(first))
    asking = OidcAuthenticator(source, Expected(ISSUER, "box", 0))
    token = first.token(CLAIMS)
    for _ in range(3):
        assert identify(token, asking).name == "ada"
    assert refusal(token, asking, NOW + 61) == oidc.EXPIRED
    assert refusal(token[:-4] + "AAAA", asking) == oidc.INVALID
    source.keys = read_key_set(key_set(second))  # the same name, another key
    assert refusal(token, asking) == oidc.INVALID
    source.has_keys = False
    assert refusal(token, asking) == oidc.UNAVAILABLE


Change = Callable[[random.Random, str], bytes]


def flipped(dice: random.Random, good: str) -> bytes:
    data = bytearray(good.encode())
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(7)
    return bytes(data)


def cut(dice: random.Random, good: str) -> bytes:
    return good[: dice.randrange(len(good))].encode()


def grown(dice: random.Random, good: str) -> bytes:
    at = dice.randrange(len(good) + 1)
    return good[:at].encode() + bytes(dice.choices(b"=.-_Aa0,;\x00\xff", k=3)) + good[at:].encode()


def swapped(dice: random.Random, good: str) -> bytes:
    parts = good.split(".")
    dice.shuffle(parts)
    return ".".join(parts[: dice.randint(0, 3)]).encode()


def mixed(dice: random.Random, good: str) -> bytes:
    """Put other claims before a signature of these, or the signature of another key behind them."""
    other = dice.choice(OTHERS)
    mine = good.split(".")
    if dice.random() < 0.5:
        mine[dice.randrange(2)] = other[1]
    else:
        mine[2] = dice.choice([other[2], encoded(dice.randbytes(len(other[2])))])
    return ".".join(mine).encode()


def noise(dice: random.Random, _good: str) -> bytes:
    return b".".join(dice.randbytes(dice.randint(0, 60)) for _ in range(dice.randint(1, 5)))


def test_none_of_six_thousand_malformed_tokens_gets_in() -> None:
    """Seeded; and none makes the source of keys look more than once."""
    dice, source = random.Random("oidc 13"), Counting()
    asking = OidcAuthenticator(source, Expected(ISSUER, "box"))
    goods = [key.token(CLAIMS) for key in (RSA, EC, ED)]
    changes: list[Change] = [flipped, cut, grown, swapped, mixed, noise]
    for _ in range(6000):
        good = dice.choice(goods)
        token = dice.choice(changes)(dice, good)
        if token.strip(b" \t") == good.encode():
            continue
        before = source.asked
        with pytest.raises(NotAdmitted) as refused:
            asking.identify(b"Bearer " + token, NOW)
        assert refused.value.text in TEXTS, token
        assert source.asked - before <= 1
