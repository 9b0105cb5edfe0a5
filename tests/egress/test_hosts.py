"""Hosts and authorities: one spelling, or a refusal."""

from __future__ import annotations

import pytest

from execserver.egress.addresses import literal
from execserver.egress.hosts import BadHost, has_port, normal_host, shown, split_authority


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("example.com", "example.com"),
        ("EXAMPLE.Com.", "example.com"),
        ("example.com..", "example.com"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("a_b.example", "a_b.example"),
        ("[::1]", "::1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("[::FFFF:127.0.0.1]", "::ffff:127.0.0.1"),
        ("2130706433", "2130706433"),
    ],
)
def test_a_host_has_one_spelling(text: str, host: str) -> None:
    assert normal_host(text) == host


BAD = [
    *(
        "",
        ".",
        "..",
        "a..b",
        ".a",
        "a b",
        "a\tb",
        "a\0b",
        "blocked.example\0.allowed.example",
        "a%00b",
        "a%2eb",
    ),
    *(
        "bücher.example",
        "blocked。example",
        "a\u00adb",
        "[",
        "]",
        "[]",
        "[a]",
        "[::1",
        "::1]",
        "a[b]",
        "fe80::1%lo",
    ),
    *("[fe80::1%25lo]", "a/b", "a\\b", "a@b", "a#b", "a?b", "a" * 64 + ".example", ".".join(["a" * 60] * 5)),
]


@pytest.mark.parametrize("text", BAD)
def test_what_two_programs_could_read_in_two_ways_is_no_host(text: str) -> None:
    with pytest.raises(BadHost):
        normal_host(text)


@pytest.mark.parametrize("text", ["a" + "." * 506, "1:" * 254, "0" * 507])
def test_what_is_longer_than_any_name_is_refused_and_not_remembered(text: str) -> None:
    literal.cache_clear()
    with pytest.raises(BadHost):
        normal_host(text)
    assert literal.cache_info().currsize == 0


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a.example", ("a.example", 80)),
        ("a.example:8080", ("a.example", 8080)),
        ("[::1]:443", ("::1", 443)),
        ("[::1]", ("::1", 80)),
        ("A.:1", ("a", 1)),
    ],
)
def test_an_authority_is_host_and_port(text: str, place: tuple[str, int]) -> None:
    assert split_authority(text, 80) == place


@pytest.mark.parametrize(
    "text",
    ["a:", "a:0", "a:65536", "a:-1", "a:+1", "a:1x", "a:1:2", "::1", "[::1]x", "[::1]80", "a:٣", ":80"],
)
def test_a_bad_authority_is_refused(text: str) -> None:
    with pytest.raises(BadHost):
        split_authority(text, 80)


def test_a_port_is_needed_where_there_is_no_default() -> None:
    with pytest.raises(BadHost):
        split_authority("a.example", None)


def test_a_port_of_an_authority_is_seen() -> None:
    assert [has_port(text) for text in ("a", "a:1", "[::1]", "[::1]:1")] == [False, True, False, True]


def test_a_place_is_shown_as_an_authority() -> None:
    assert [shown("a", 1), shown("::1", 2)] == ["a:1", "[::1]:2"]
