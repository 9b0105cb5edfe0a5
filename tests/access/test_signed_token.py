"""Signed tokens, beyond what was recorded: each outcome but the marked ones is the reference server's too."""

from __future__ import annotations

import hmac

import pytest

from execserver.access import signed_token as rules
from execserver.access.identity import NotAdmitted
from execserver.access.signed_token import Expected, SignedToken
from tests.support.ws_auth import HEADER, SECRET, sign

NOW = 1_795_000_000
GOOD = {"exp": NOW + 100, "iss": "me", "aud": "you"}
TOKENS = SignedToken(SECRET, Expected("me", "you", 0))


def outcome(token: str, tokens: SignedToken = TOKENS) -> str:
    """Return the text of the refusal; empty when the token is good."""
    try:
        tokens.identify(b"Bearer " + token.encode(), NOW + 0.9)
    except NotAdmitted as refused:
        return refused.text
    return ""


CLAIMS = [
    ({}, ""),
    ({"exp": NOW}, ""),
    ({"exp": NOW - 1}, rules.EXPIRED),
    ({"exp": -5}, rules.EXPIRED),
    ({"exp": 2**63}, rules.INVALID),
    ({"exp": 1e20}, rules.INVALID),
    ({"exp": True}, rules.INVALID),
    ({"exp": None}, rules.INVALID),
    ({"nbf": None}, ""),
    ({"nbf": NOW}, ""),
    ({"nbf": NOW + 1}, rules.NOT_YET),
    ({"nbf": -5}, ""),
    ({"nbf": "5"}, rules.INVALID),
    ({"nbf": 5.0}, rules.INVALID),
    ({"iss": None}, rules.OTHER_ISSUER),
    ({"iss": ["me"]}, rules.INVALID),
    ({"aud": None}, rules.OTHER_AUDIENCE),
    ({"aud": []}, rules.OTHER_AUDIENCE),
    ({"aud": ["x", "you"]}, ""),
    ({"aud": [5, "you"]}, rules.INVALID),
    ({"aud": 5}, rules.INVALID),
    ({"aud": {"you": 1}}, rules.INVALID),
    ({"iat": "x", "jti": 5, "sub": 5}, ""),
    ({"exp": 5, "nbf": NOW + 999}, rules.EXPIRED),
    ({"exp": 5, "iss": "x"}, rules.EXPIRED),
    ({"nbf": NOW + 999, "aud": "x"}, rules.NOT_YET),
    ({"iss": "x", "aud": "x"}, rules.OTHER_ISSUER),
]


@pytest.mark.parametrize(("changed", "text"), CLAIMS, ids=repr)
def test_claims_are_judged_in_the_references_order(changed: dict[str, object], text: str) -> None:
    assert outcome(sign(HEADER, GOOD | changed)) == text


HEADERS: list[tuple[object, bool]] = [
    ({"alg": "HS256"}, True),
    ({"alg": "HS256", "typ": "x", "kid": "k", "crit": ["b64"], "b64": False, "zz": 5}, True),
    ({"alg": "HS256", "jku": "http://127.0.0.1:1/", "x5c": ["a"]}, True),
    ({"alg": "HS256", "kid": 5}, False),
    ({"alg": "HS256", "typ": 5}, False),
    *(({"alg": alg}, False) for alg in ("none", "hs256", "HS384", "HS512", "RS256", "", None, ["HS256"], 5)),
    ({"typ": "JWT"}, False),
    (b'{"alg":"none","alg":"HS256"}', False),
    (b"[]", False),
    (b"", False),
]


@pytest.mark.parametrize(("header", "good"), HEADERS, ids=repr)
def test_the_header_must_say_hs256(header: object, good: bool) -> None:
    assert outcome(sign(header, GOOD)) == ("" if good else rules.INVALID)


PAYLOADS = [
    (b' {"exp": %d, "iss": "me", "aud": "you"} \n', ""),
    (b'\xef\xbb\xbf{"exp": %d, "iss": "me", "aud": "you"}', rules.INVALID),
    (b'{"exp": %d, "iss": "me", "aud": "you"}x', rules.INVALID),
    (b'{"exp": %d, "iss": "me", "aud": "you", "x": NaN}', rules.INVALID),
    (b'{"exp": 1, "exp": %d, "iss": "me", "aud": "you"}', rules.INVALID),
    (b'{"exp": %d, "iss": "me", "aud": "you", "x": {"y": 1, "y": 2}}', rules.INVALID),  # ours only
    (b'{"exp": %d, "iss": "me", "aud": "you", "x": "\xff"}', rules.INVALID),  # ours only
    (b'{"exp": %d, "iss": "me", "aud": "you", "x": ' + b"[" * 5000 + b"]" * 5000 + b"}", rules.INVALID),
]


@pytest.mark.parametrize(("payload", "text"), PAYLOADS)
def test_the_payload_must_be_one_plain_object(payload: bytes, text: str) -> None:
    assert outcome(sign(HEADER, payload.replace(b"%d", b"%d" % (NOW + 100)))) == text


def test_only_the_one_spelling_of_each_part_counts() -> None:
    token = sign(HEADER, GOOD)
    header, payload, signature = token.split(".")
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    other_end = alphabet[alphabet.index(signature[-1]) ^ 1]
    for spelled in (
        f"{token}=",
        f"{header}.{payload}=.{signature}",
        f"{token}.x",
        f"{header}.{payload}",
        f"{header}.{payload}.",
        "..",
        f"{header}.{payload}.{signature[:-1]}{other_end}",
        f"{token[:5]} {token[5:]}",
        f"{token[:5]}\t{token[5:]}",
    ):
        assert outcome(spelled) == rules.INVALID, spelled


def test_without_expectations_issuer_and_audience_are_free() -> None:
    anybody = SignedToken(SECRET, Expected())
    assert outcome(sign(HEADER, {"exp": NOW - 30}), anybody) == ""
    assert outcome(sign(HEADER, {"exp": NOW - 31}), anybody) == rules.EXPIRED
    assert outcome(sign(HEADER, {"exp": NOW, "iss": "x", "aud": ["y"]}), anybody) == ""


def test_the_payload_is_not_read_before_the_signature_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(one: bytes, other: bytes) -> bool:
        assert (len(other), one != other) == (32, True)
        return False

    monkeypatch.setattr(hmac, "compare_digest", forbidden)
    assert outcome(sign(HEADER, b"no JSON", b"x" * 32)) == rules.INVALID


@pytest.mark.parametrize(
    ("subject", "name"),
    [("ada", "ada"), ("", "jwt"), (None, "jwt"), (5, "jwt"), ("a\nb", "jwt"), ("x" * 129, "jwt"), ("ö", "ö")],
)
def test_the_subject_names_the_holder_where_it_can_be_shown(subject: object, name: str) -> None:
    token = sign(HEADER, {"exp": NOW, "sub": subject})
    identity = SignedToken(SECRET, Expected()).identify(b"Bearer " + token.encode(), NOW)
    assert (identity.way, identity.name, identity.grant) == ("jwt", name, None)
