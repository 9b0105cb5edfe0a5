"""Where a request leads: target and Host have to say the same."""

from __future__ import annotations

import pytest

from execserver.egress.http_heads import parse_request
from execserver.egress.http_targets import MISMATCH, MISSING_HOST, BadTarget, target_of


def target(line: str, *fields: str) -> tuple[str, int, str]:
    found = target_of(parse_request("\r\n".join((f"{line} HTTP/1.1", *fields, "", "")).encode()))
    return found.host, found.port, found.path


@pytest.mark.parametrize(
    ("line", "host", "place"),
    [
        ("GET http://A.Example/x?y", "a.example", ("a.example", 80, "/x?y")),
        ("GET http://a.example:81", "a.example:81", ("a.example", 81, "/")),
        ("GET http://a.example?q", "a.example", ("a.example", 80, "/?q")),
        ("GET http://a.example/x#y", "a.example", ("a.example", 80, "/x")),
        ("GET /x", "a.example:81", ("a.example", 81, "/x")),
        ("OPTIONS *", "a.example", ("a.example", 80, "*")),
        ("GET HTTP://[::1]:81/", "[::1]:81", ("::1", 81, "/")),
        ("GET https://a.example/", "a.example", ("a.example", 443, "/")),
        ("CONNECT a.example:443", "a.example:443", ("a.example", 443, "")),
        ("CONNECT a.example:443", "a.example", ("a.example", 443, "")),
        ("CONNECT a.example", "a.example", ("a.example", 80, "")),
    ],
)
def test_a_request_leads_to_one_place(line: str, host: str, place: tuple[str, int, str]) -> None:
    assert target(line, f"Host: {host}") == place


def test_a_target_with_a_host_needs_no_field() -> None:
    assert target("GET http://a.example/")[0] == target("CONNECT a.example:443")[0] == "a.example"


@pytest.mark.parametrize(
    ("line", "fields", "text"),
    [
        ("GET /x", (), MISSING_HOST),
        ("GET /x", ("Host:",), MISSING_HOST),
        ("GET /x", ("Host: a b",), MISSING_HOST),
        ("GET http:///x", ("Host: a",), MISSING_HOST),
        ("GET http://allowed.example/", ("Host: blocked.example",), MISMATCH),
        ("GET http://allowed.example/", ("Host: allowed.example:81",), MISMATCH),
        ("GET http://allowed.example:81/", ("Host: allowed.example:80",), MISMATCH),
        ("GET http://allowed.example/", ("Host: a%62",), MISMATCH),
        ("GET ftp://allowed.example/", ("Host: allowed.example",), MISMATCH),
        ("GET http://allowed.example@blocked.example/", ("Host: blocked.example",), MISMATCH),
        ("GET http:/allowed.example/", ("Host: allowed.example",), MISMATCH),
        ("GET allowed.example", ("Host: allowed.example",), MISMATCH),
        ("CONNECT allowed.example:443", ("Host: blocked.example:443",), MISMATCH),
        ("CONNECT allowed.example:443", ("Host: allowed.example:22",), MISMATCH),
        ("CONNECT http://a.example/", (), MISSING_HOST),
        ("CONNECT a.example:0", (), MISSING_HOST),
        ("CONNECT blocked.example%00.allowed.example:443", (), MISSING_HOST),
    ],
)
def test_a_request_that_leads_nowhere_or_to_two_places_is_refused(
    line: str, fields: tuple[str, ...], text: str
) -> None:
    with pytest.raises(BadTarget) as refused:
        target(line, *fields)
    assert str(refused.value) == text
