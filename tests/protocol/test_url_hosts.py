"""Hosts of URLs, as the reference writes or refuses them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.protocol.errors import InvalidParams
from execserver.protocol.url_hosts import check_other_url, parse_file_host

NAME = "invalid international domain name"
IPV4 = "invalid IPv4 address"
IPV6 = "invalid IPv6 address"


@pytest.mark.parametrize(
    ("given_host", "host"),
    [
        ("H.Example", "h.example"),
        ("localhost", ""),
        ("LOCAL%48ost", ""),
        ("localhost.", "localhost."),
        ("a..b", "a..b"),
        ('a_b!~`{"', 'a_b!~`{"'),
        ("a%41", "aa"),
        ("bücher", "xn--bcher-kva"),
        ("%c3%bc", "xn--tda"),
        ("faß.de", "xn--fa-hia.de"),
        ("Ⅷ", "viii"),
        ("\uff41", "a"),
        ("a\u00adb", "ab"),
        ("a。b", "a.b"),
        ("İ", "xn--i-9bb"),
        ("א1", "xn--1-zhc"),
        ("xn--bcher-kva", "xn--bcher-kva"),
        ("1.2", "1.0.0.2"),
        ("0x7f.1", "127.0.0.1"),
        ("010.1", "8.0.0.1"),
        ("0x", "0.0.0.0"),
        ("1.", "0.0.0.1"),
        ("1..", "1.."),
        ("4294967295", "255.255.255.255"),
        ("\uff11\uff12\uff17\u30021", "127.0.0.1"),
        ("[::1]", "[::1]"),
        ("[1::]", "[1::]"),
        ("[1:2:3:4:5:6:7:8]", "[1:2:3:4:5:6:7:8]"),
        ("[::ffff:1.2.3.4]", "[::ffff:102:304]"),
        ("[1:0:0:2:0:0:0:3]", "[1:0:0:2::3]"),
    ],
)
def test_accepted_hosts_are_normalised(given_host: str, host: str) -> None:
    assert parse_file_host(given_host) == host


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("user@h", NAME),
        ("h:80", NAME),
        ("a b", NAME),
        ("a%20b", NAME),
        ("%zz", NAME),
        ("%ff", NAME),
        ("a\x7fb", NAME),
        ("xn--", NAME),
        ("xn--a", NAME),
        ("a\u200db", NAME),
        ("\u0301a", NAME),
        ("1א", NAME),
        ("\u00ad", "empty host"),
        ("256.1.1.1", IPV4),
        ("1.2.3.4.5", IPV4),
        ("1.2.3.08", IPV4),
        ("a.1", IPV4),
        ("4294967296", IPV4),
        ("9" * 5000, IPV4),
        ("[::zz]", IPV6),
        ("[::1", IPV6),
    ],
)
def test_refused_hosts_have_the_reason_of_the_reference(host: str, reason: str) -> None:
    with pytest.raises(InvalidParams) as caught:
        parse_file_host(host)
    assert caught.value.message == f"invalid URI: {reason}"


@pytest.mark.parametrize(
    ("scheme", "rest", "reason"),
    [
        ("http", "", "empty host"),
        ("http", "//user@/", "empty host"),
        ("http", "//h:99999/", "invalid port number"),
        ("http", "//h:zz/", "invalid port number"),
        ("http", "//a b/", NAME),
        ("http", "//[bad", IPV6),
        ("http", "[::1]x", IPV6),
        ("foo", "//a b/", "invalid domain character"),
        ("foo", "//[x/", IPV6),
        ("foo", "//h:zz/", "invalid port number"),
        ("foo", "//:1/", "empty host"),
    ],
)
def test_what_is_no_url_at_all_is_said_first(scheme: str, rest: str, reason: str) -> None:
    with pytest.raises(InvalidParams) as caught:
        check_other_url(scheme, rest)
    assert caught.value.message == f"invalid URI: {reason}"


@pytest.mark.parametrize(
    ("scheme", "rest"),
    [
        ("http", "//h/x"),
        ("http", "x"),
        ("http", "\\\\h:80"),
        ("ws", "//[::1]:1/"),
        ("foo", ""),
        ("foo", "//"),
        ("foo", "//%zz/"),
    ],
)
def test_other_urls_are_no_error_here(scheme: str, rest: str) -> None:
    check_other_url(scheme, rest)


@given(st.text(max_size=20))
def test_any_host_is_normalised_once_or_gives_a_typed_error(text: str) -> None:
    try:
        host = parse_file_host(text)
    except InvalidParams:
        return
    assert host.isascii()
    assert host == "" or parse_file_host(host) == host
