"""The client's half of an upgrade: only an answer that is right beyond doubt is usual."""

from __future__ import annotations

import pytest

from execserver.wire import handshake
from execserver.wire.client_upgrade import HEAD_END, is_usual, may_be_usual, new_key, request

KEY = "dGhlIHNhbXBsZSBub25jZQ=="  # RFC 6455, section 1.3
ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
HEAD = (
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    f"Sec-WebSocket-Accept: {ACCEPT}"
)


def test_our_server_takes_the_request_and_its_answer_is_usual() -> None:
    key = new_key()
    asked = request("box:1", "/", key, {"Authorization": "Bearer t"})
    answer = handshake.answer(handshake.parse_head(asked.removesuffix(HEAD_END)), "now")
    assert answer.upgraded
    assert answer.data.endswith(HEAD_END)
    assert is_usual(answer.data.removesuffix(HEAD_END), key)
    assert b"\r\nAuthorization: Bearer t\r\n" in asked


def test_a_name_and_a_password_are_sent_as_the_url_has_them() -> None:
    assert b"\r\nAuthorization: Basic bWU6cMOk\r\n" in request("h", "/", KEY, {}, ("me", "pä"))


@pytest.mark.parametrize("header", [{"X": "a\r\nY: b"}, {"X": "a\nb"}, {"X\r\nY": "a"}])
def test_no_header_brings_another(header: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="line end"):
        request("h", "/", KEY, header)


def test_keys_differ() -> None:
    assert len({new_key() for _ in range(100)}) == 100


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "", True),
        ("Upgrade: websocket", "upgrade:WebSocket \t", True),
        ("HTTP/1.1 101 Switching Protocols", "HTTP/1.1 101 ", True),
        (ACCEPT, ACCEPT.lower(), False),
        ("HTTP/1.1 101", "HTTP/1.1 200", False),
        ("HTTP/1.1 101", "HTTP/1.0 101", False),
        ("Switching", "\x1b[2J", False),
        ("Upgrade: websocket", "Upgrade: h2c", False),
        ("Upgrade: websocket\r\n", "", False),
        ("Connection: Upgrade", "Connection: close", False),
        ("Connection: Upgrade", "Connection: keep-alive, Upgrade", False),  # the library knows such lists
        ("Connection: Upgrade", "Connection: Upgrade\r\nUpgrade: websocket", False),
        ("Connection: Upgrade", "Connection: Upgrade\r\nSec-WebSocket-Extensions: x", False),
        ("Connection: Upgrade", "Connection: Upgrade\r\nSec-WebSocket-Protocol: x", False),
        ("Connection: Upgrade", "Connection: Upgrade\r\n folded", False),
        ("Connection: Upgrade", "Connection : Upgrade", False),
        ("Connection: Upgrade", "Connection: Upgrade\nX: y", False),
    ],
)
def test_an_answer_with_anything_odd_is_not_usual(old: str, new: str, expected: bool) -> None:
    assert old in HEAD
    assert is_usual(HEAD.replace(old, new, 1).encode(), KEY) is expected


@pytest.mark.parametrize(
    ("received", "expected"),
    [
        (b"", True),
        (b"HTTP/1.1 1", True),
        (b"HTTP/1.1 101 Switching Protocols\r\nA: b\r\n", True),
        (b"HTTP/1.1 4", False),
        (b"SSH-2.0", False),
        (HEAD.encode() + HEAD_END, False),
        (b"HTTP/1.1 101 " + b"x" * 9000, False),
    ],
)
def test_reading_goes_on_while_the_answer_may_be_usual(received: bytes, expected: bool) -> None:
    assert may_be_usual(received) is expected
