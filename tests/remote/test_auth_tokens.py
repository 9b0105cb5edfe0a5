"""Tokens: what is read without trust, and that only a proper RS256 signature is believed."""

from __future__ import annotations

import json

import pytest

from execserver.remote.auth.tokens import (
    BadToken,
    UnknownKey,
    Untrusted,
    from_base64url,
    key_set,
    unverified_claims,
    verified_claims,
)
from tests.remote.agents import KID, NOW, Issuer, b64url, claims

ISSUER = Issuer()
KEYS = key_set(ISSUER.jwks())


def verify(token: str, now: float = NOW) -> dict[str, object]:
    return verified_claims(
        token,
        KEYS,
        audience="codex-app-server",
        issuer="https://chatgpt.com/codex-backend/agent-identity",
        now=now,
    )


def test_a_proper_token_is_believed() -> None:
    assert verify(ISSUER.token(claims())) == claims()
    assert verify(ISSUER.token(claims(aud=["other", "codex-app-server"])))["account_id"] == "acct-1"


def test_only_the_rsa_keys_of_a_set_count() -> None:
    assert list(KEYS) == [KID]
    with pytest.raises(BadToken):
        key_set({"keys": "none"})


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (ISSUER.token(claims(), alg="none"), "not RS256"),
        (ISSUER.token(claims(), alg="HS256"), "not RS256"),
        (ISSUER.token(claims(), alg="RS512"), "not RS256"),
        (ISSUER.token(claims(), kid=None), "no kid"),
        (ISSUER.token(claims(aud="other")), "another audience"),
        (ISSUER.token(claims(iss="https://example.com")), "another issuer"),
        (ISSUER.token(claims(exp=NOW - 61)), "expired"),
        (ISSUER.token(claims(exp=None)), "expired"),
        (ISSUER.token(claims(exp=True)), "expired"),
        (Issuer().token(claims()), "signature does not hold"),
    ],
    ids=lambda value: value if " " in str(value) else "",
)
def test_anything_else_is_not(token: str, reason: str) -> None:
    with pytest.raises(Untrusted, match=reason):
        verify(token)


def test_a_token_may_have_expired_a_minute_ago() -> None:
    assert verify(ISSUER.token(claims(exp=NOW - 60)))


def test_a_changed_payload_breaks_the_signature() -> None:
    head, _, signature = ISSUER.token(claims()).split(".")
    forged = b64url(json.dumps(claims(account_id="acct-2")).encode())
    with pytest.raises(Untrusted, match="signature does not hold"):
        verify(f"{head}.{forged}.{signature}")


def test_an_unknown_key_is_named() -> None:
    with pytest.raises(UnknownKey) as unknown:
        verify(ISSUER.token(claims(), kid="key-2"))
    assert unknown.value.kid == "key-2"


def test_a_short_key_is_not_trusted() -> None:
    weak = Issuer(1024)
    with pytest.raises(Untrusted, match="bits"):
        verified_claims(weak.token(claims()), key_set(weak.jwks()), audience="a", issuer="i", now=NOW)


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        ("", "format"),
        ("a.b", "format"),
        ("a..c", "format"),
        ("a.b.c.d", "format"),
        ("a.!.c", "payload is not valid base64url"),
        ("a.eyJ9=.c", "payload is not valid base64url"),
        ("a.aaaaa.c", "payload is not valid base64url"),
        (f"a.{b64url(b'[]')}.c", "payload is not valid JSON"),
        (f"a.{b64url(bytes([255]))}.c", "payload is not valid JSON"),
    ],
)
def test_what_is_no_token_is_told(token: str, reason: str) -> None:
    with pytest.raises(BadToken) as bad:
        unverified_claims(token)
    assert bad.value.reason == reason


def test_base64url_is_read_without_padding_only() -> None:
    assert from_base64url("_-8") == b"\xff\xef"
    for text in ("_-8=", "+/8", "a", "a b"):
        with pytest.raises(ValueError):
            from_base64url(text)
