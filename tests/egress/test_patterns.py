"""Domain patterns: what they match, and the wire contract's texts for those that cannot be."""

from __future__ import annotations

import time

import pytest

from execserver.egress.patterns import ConfigError, Pattern, denying


@pytest.mark.parametrize(
    ("pattern", "hosts", "others"),
    [
        ("a.example", ["a.example"], ["b.a.example", "xa.example", "a.example.b"]),
        ("A.Example.", ["a.example"], ["b.a.example"]),
        ("a.example:80", ["a.example"], []),
        ("a.example:x", ["a.example"], []),
        ("*.a.example", ["b.a.example", "c.b.a.example"], ["a.example", "xa.example"]),
        ("**.a.example", ["a.example", "b.a.example", "c.b.a.example"], ["xa.example"]),
        ("*", ["a", "b.c", "1.2.3.4", "::1"], []),
        ("[*]", ["a", "::1"], []),
        ("a.*", ["a.b", "a.b.c"], ["a", "ab"]),
        ("*a.example", ["a.example", "xa.example", "b.a.example"], ["a.example.b"]),
        ("a?.example", ["ab.example"], ["a.example", "abc.example"]),
        ("a*b.com", ["ab.com", "axxb.com"], ["ab.com.x"]),
        ("1.2.3.4", ["1.2.3.4"], ["1.2.3.5"]),
        ("[::1]", ["::1"], ["::2"]),
        ("0:0::1", ["::1"], []),
        ("[::1]:443", ["::1"], []),
        ("é.com", ["xn--9ca.com"], ["e.com"]),
        ("**.é.com", ["xn--9ca.com", "a.xn--9ca.com"], []),
    ],
)
def test_a_pattern_matches_its_hosts_only(pattern: str, hosts: list[str], others: list[str]) -> None:
    parsed = Pattern(pattern)
    assert [host for host in hosts if not parsed.matches(host)] == []
    assert [host for host in others if parsed.matches(host)] == []


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("", "domain pattern is empty"),
        (".", "domain pattern is empty"),
        ("*.", "domain pattern is empty"),
        ("http://a", "unsupported domain pattern syntax: http://a"),
        ("a/b", "unsupported domain pattern syntax: a/b"),
        ("a b", "unsupported domain pattern syntax: a b"),
        ("a\0b", "unsupported domain pattern syntax: a\0b"),
        ("10.0.0.0/8", "unsupported domain pattern syntax: 10.0.0.0/8"),
        ("{a,b}.com", "unsupported domain pattern syntax: {a,b}.com"),
        ("[x", "brackets are only supported for IPv6 literals or [*]: [x"),
        ("[a-z].com", "brackets are only supported for IPv6 literals or [*]: [a-z].com"),
        ("**", "unsupported repeated wildcard: **"),
        ("a.**.b", "unsupported repeated wildcard: a.**.b"),
    ],
)
def test_what_is_no_pattern_is_refused_in_the_contract_s_words(pattern: str, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Pattern(pattern)
    assert str(refused.value) == text


@pytest.mark.parametrize("pattern", ["*", "[*]"])
def test_not_everything_can_be_denied(pattern: str) -> None:
    with pytest.raises(ConfigError) as refused:
        denying(pattern)
    assert str(refused.value) == (
        "invalid value for network.denied_domains: * "
        "(allowed exact hosts or scoped wildcards like *.example.com or **.example.com)"
    )


def test_a_pattern_full_of_wildcards_takes_no_long_time() -> None:
    pattern = Pattern(".".join(["*a"] * 60) + ".b")
    began = time.process_time()
    assert not pattern.matches("a." * 120 + "c")
    assert time.process_time() - began < 1
