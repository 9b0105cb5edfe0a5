"""What a URL says about a server: the usual form is read as the `websockets` library reads every form."""

from __future__ import annotations

import random

import pytest
from websockets.exceptions import InvalidURI
from websockets.uri import parse_uri

from execserver.client.carriers.urls import Address, parse_url, usual
from execserver.client.errors import InvalidUrl

PARTS = ["ws", "wss", "://", ":", "/", "127.0.0.1", "box", "A", "-", ".", "[::1]", "80", "0", "70000", "?a=b"]
PARTS += ["#", "@", "%41", "ö", " ", "\n", "_", "..", "a/b"]


def library(url: str) -> Address | None:
    try:
        uri = parse_uri(url)
    except (InvalidURI, ValueError):
        return None
    return Address(uri.secure, uri.host, uri.port, uri.resource_name, uri.user_info)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("ws://127.0.0.1:8765", Address(False, "127.0.0.1", 8765)),
        ("wss://dev.example.org", Address(True, "dev.example.org", 443)),
        ("ws://box/a/b", Address(False, "box", 80, "/a/b")),
        ("ws://[::1]:9", Address(False, "::1", 9)),
        ("wss://Box:1/x?y=z", Address(True, "box", 1, "/x?y=z")),
        ("ws://me:pass@box", Address(False, "box", 80, user=("me", "pass"))),
        ("unix:///run/s", Address(False, "localhost", 80, socket_file="/run/s")),
    ],
)
def test_a_url_is_taken_apart(url: str, address: Address) -> None:
    assert parse_url(url) == address


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("ws://box:80", "box"),
        ("ws://box:443", "box:443"),
        ("wss://box:443", "box"),
        ("ws://[::1]:9", "[::1]:9"),
    ],
)
def test_the_host_header_has_the_port_unless_it_is_the_usual_one(url: str, host: str) -> None:
    assert parse_url(url).authority == host


def test_the_usual_form_means_what_it_means_to_the_library() -> None:
    chance = random.Random(3)
    usual_ones = 0
    for _ in range(10_000):
        scheme = chance.choice(["ws://", "wss://", ""])
        url = scheme + "".join(chance.choices(PARTS, k=chance.randint(1, 5)))
        found = usual(url)
        if found is not None:
            assert found == library(url)
            usual_ones += 1
    assert usual_ones > 100


@pytest.mark.parametrize("url", ["ws://box:0x1", "ws://box:65536", "ws://", "ws://box#f", "http://box"])
def test_what_is_no_url_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(InvalidUrl):
        parse_url(url)
