"""The headers of a request in which a credential may stand."""

from __future__ import annotations

import pytest

from execserver.egress.credential_headers import Credential, replaced
from execserver.egress.providers import Auth, Destination, Provider

REAL, STAND_IN = b"real-value", b"stand-in"


def credential(*auths: Auth, header: str | None = None) -> Credential:
    provider = Provider("p", ("KEY",), ("a.example",), patterns=("x+",), auths=auths, header=header)
    return Credential("KEY", REAL, STAND_IN, provider, [Destination("https://a.example/v1")])


@pytest.mark.parametrize(
    ("value", "made"),
    [
        (b"Bearer stand-in", b"Bearer real-value"),
        (b"TOKEN stand-in", b"TOKEN real-value"),
        (b"Basic c3RhbmQtaW46", b"Basic cmVhbC12YWx1ZTo="),
        (b"Basic c3RhbmQtaW46\n", b"Basic c3RhbmQtaW46\n"),
        (b"Digest stand-in", b"Digest stand-in"),
        (b"stand-in", b"stand-in"),
        (b"", b""),
    ],
)
def test_authorization_is_replaced_where_it_is_the_stand_in(value: bytes, made: bytes) -> None:
    able = [credential(Auth.BEARER, Auth.TOKEN, Auth.BASIC)]
    assert replaced([(b"Accept", b"*/*"), (b"Authorization", value)], able)[1] == (b"Authorization", made)


def test_a_field_that_is_there_twice_is_left_alone() -> None:
    fields = [(b"X-Key", STAND_IN), (b"x-key", STAND_IN)]
    able = [credential(Auth.HEADER, header="x-key")]
    assert replaced(fields, able) == fields
    assert replaced(fields[:1], able) == [(b"X-Key", REAL)]


def test_a_credential_knows_where_it_may_go() -> None:
    made = credential()
    assert made.is_at("a.example", 443)
    assert made.covers("a.example", 443, "/v1/x")
    assert not made.covers("a.example", 443, "/v2")
    assert not made.covers("b.example", 443, "/v1")
