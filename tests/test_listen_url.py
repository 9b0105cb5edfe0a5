"""What `--listen` takes and what it refuses (wire contract, section 1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import execserver
from execserver.listen_url import (
    DEFAULT_LISTEN_URL,
    ExecServerListenUrlParseError,
    InvalidUnixListenUrl,
    InvalidWebSocketListenUrl,
    Listen,
    Stdio,
    UnixListen,
    UnsupportedListenUrl,
    WsListen,
    listen_url,
    parse_listen_url,
)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (DEFAULT_LISTEN_URL, WsListen("127.0.0.1", 0)),
        ("ws://0.0.0.0:65535", WsListen("0.0.0.0", 65535)),
        ("ws://127.0.0.1:00080", WsListen("127.0.0.1", 80)),
        ("ws://[::1]:0", WsListen("::1", 0)),
        ("ws://[::ffff:1.2.3.4]:8", WsListen("::ffff:1.2.3.4", 8)),
        ("ws://[fe80::1%2]:9", WsListen("fe80::1", 9, 2)),
        ("unix:///run/x.sock", UnixListen("/run/x.sock")),
        ("unix:///a b", UnixListen("/a b")),
        ("stdio", Stdio()),
        ("stdio://", Stdio()),
    ],
)
def test_exact_addresses_and_stdio_are_taken(url: str, expected: Listen) -> None:
    assert parse_listen_url(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "ws://localhost:0",
        "ws://127.0.0.1",
        "ws://127.0.0.1:",
        "ws://127.0.0.1:0/",
        "ws://127.0.0.1:65536",
        "ws://127.0.0.1:99999999999999999999",
        "ws://127.0.0.1:+80",
        "ws://127.0.0.1:-1",
        "ws://127.0.0.1: 80",
        "ws://127.0.0.1:8_0",
        "ws://127.0.0.1:\u0661",
        "ws://127.0.0.01:80",
        "ws://127.1:80",
        "ws://256.0.0.1:80",
        "ws://::1:80",
        "ws://[::1]",
        "ws://[::1:80",
        "ws://[127.0.0.1]:80",
        "ws://[::1%]:80",
        "ws://[::1%eth0]:80",
        "ws://[::1%4294967296]:80",
        "ws://127.0.0.1\0:80",
        "ws://",
        "ws://:80",
    ],
)
def test_websocket_urls_without_a_socket_address_are_refused(url: str) -> None:
    with pytest.raises(InvalidWebSocketListenUrl) as refused:
        parse_listen_url(url)
    assert str(refused.value) == f"invalid websocket --listen URL `{url}`; expected `ws://IP:PORT`"
    assert refused.value.url == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "wsss://127.0.0.1:0",
        "http://x",
        "127.0.0.1:0",
        "WS://127.0.0.1:0",
        "STDIO",
        "stdio:",
        "unix:/x",
    ],
)
def test_other_texts_are_unsupported(url: str) -> None:
    with pytest.raises(UnsupportedListenUrl) as refused:
        parse_listen_url(url)
    assert str(refused.value) == f"unsupported --listen URL `{url}`; expected `ws://IP:PORT` or `stdio`"


@given(st.one_of(st.text(), st.text().map("ws://".__add__), st.text().map("ws://[".__add__)))
def test_any_text_gives_a_carrier_or_the_typed_error(url: str) -> None:
    try:
        listen: object = parse_listen_url(url)
    except ExecServerListenUrlParseError as error:
        listen = error
    assert isinstance(listen, WsListen | Stdio) or f"`{url}`" in str(listen)


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)), st.integers(0, 65535))
def test_the_printed_url_of_an_address_is_taken_again(address: object, port: int) -> None:
    assert parse_listen_url(listen_url(str(address), port)) == WsListen(str(address), port)


def test_a_scope_is_printed_by_its_number() -> None:
    assert listen_url("fe80::1%eth0", 7, 3) == "ws://[fe80::1%3]:7"


def test_the_package_exports_the_names() -> None:
    assert execserver.DEFAULT_LISTEN_URL == "ws://127.0.0.1:0"
    assert execserver.ExecServerListenUrlParseError is ExecServerListenUrlParseError


def test_carriers_tell_what_they_are() -> None:
    assert (repr(Stdio()), hash(Stdio()) == hash(Stdio()), Stdio() == "stdio") == ("Stdio()", True, False)
    assert (WsListen("::1", 0).is_ipv6, WsListen("127.0.0.1", 0).is_ipv6) == (True, False)


@pytest.mark.parametrize(
    ("url", "loopback"),
    [
        ("ws://127.0.0.1:0", True),
        ("ws://127.9.9.9:1", True),
        ("ws://[::1]:0", True),
        ("ws://[0:0:0:0:0:0:0:1]:0", True),
        ("ws://[::ffff:127.0.0.1]:0", True),
        ("ws://0.0.0.0:0", False),
        ("ws://[::]:0", False),
        ("ws://[::ffff:0.0.0.0]:0", False),
        ("ws://[fe80::1%2]:9", False),
        ("ws://128.0.0.1:0", False),
    ],
)
def test_loopback_is_known_in_every_spelling(url: str, loopback: bool) -> None:
    listen = parse_listen_url(url)
    assert isinstance(listen, WsListen)
    assert listen.is_loopback is loopback


@pytest.mark.parametrize("url", ["unix://", "unix://x", "unix:///", "unix:///a/", "unix:///a\0b"])
def test_a_socket_needs_an_absolute_path(url: str) -> None:
    with pytest.raises(InvalidUnixListenUrl) as refused:
        parse_listen_url(url)
    assert str(refused.value) == f"invalid unix --listen URL `{url}`; expected `unix:///PATH`"
