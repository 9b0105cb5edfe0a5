"""Bearer tokens: how the header is read, and who has the one token."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from execserver.access import bearer
from execserver.access.bearer import CapabilityToken, bearer_token, is_sha256
from execserver.access.identity import NotAdmitted

TOKEN = CapabilityToken.of("a b")


def refusal(authorization: bytes | None) -> str:
    with pytest.raises(NotAdmitted) as refused:
        TOKEN.identify(authorization, 0.0)
    return refused.value.text


@pytest.mark.parametrize(
    "value", [b"Bearer a b", b"bearer a b", b"BEARER   a b", b"Bearer \ta b\t ", b" Bearer a b"]
)
def test_the_scheme_has_any_case_and_blanks_around_the_token_do_not_count(value: bytes) -> None:
    assert bearer_token(value) == b"a b"
    assert TOKEN.identify(value, 0.0).way == "token"


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"Bearer",
        b"Bearer ",
        b"Bearer\ta b",
        b"Bearera b",
        b"Basic a b",
        b"a b",
        b"Bearer a\xe9",
        b"\xff \xff",
    ],
)
def test_what_is_no_bearer_token_is_unreadable(value: bytes) -> None:
    assert refusal(value) == bearer.UNREADABLE


def test_no_header_and_another_token_have_their_own_texts() -> None:
    assert refusal(None) == bearer.MISSING
    assert refusal(b"Bearer a  b") == bearer.WRONG_TOKEN


def test_digests_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return False

    monkeypatch.setattr(hmac, "compare_digest", compare)
    for token in (b"x", b"a b", b"y" * 9000):
        assert refusal(b"Bearer " + token) == bearer.WRONG_TOKEN
    assert compared == [(32, 32)] * 3


def test_a_digest_has_64_digits_in_any_case() -> None:
    digest = hashlib.sha256(b"x").hexdigest()
    assert is_sha256(digest)
    assert is_sha256(digest.upper())
    assert not any(map(is_sha256, ["", digest[1:], digest + "0", "g" + digest[1:], digest + "\n"]))
