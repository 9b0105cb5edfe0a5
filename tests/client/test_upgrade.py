"""The answer to an upgrade, fed in pieces."""

from __future__ import annotations

import re

import pytest

from execserver.client.carriers.upgrade import Upgrade
from execserver.client.carriers.urls import parse_url
from execserver.client.errors import ConnectFailed, InvalidUrl
from execserver.wire.accepting import accept_value

ADDRESS = parse_url("ws://127.0.0.1:1/x?y=1")


def begun() -> tuple[Upgrade, bytes]:
    """Return an upgrade, and an answer that accepts it."""
    upgrade = Upgrade(ADDRESS, {"A": "b"})
    key = re.search(rb"Sec-WebSocket-Key: (\S+)\r\n", upgrade.request)
    assert key is not None
    accept = accept_value(key[1].decode()).encode()
    head = (
        b"HTTP/1.1 101 Fine\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + accept
    )
    return upgrade, head + b"\r\n\r\n"


def test_the_request_names_the_server_and_the_headers() -> None:
    upgrade, _ = begun()
    assert upgrade.request.startswith(b"GET /x?y=1 HTTP/1.1\r\nHost: 127.0.0.1:1\r\n")
    assert b"\r\nA: b\r\n" in upgrade.request


def test_a_header_with_a_line_end_is_refused() -> None:
    with pytest.raises(InvalidUrl, match="line end"):
        Upgrade(ADDRESS, {"A": "b\r\nC: d"})


@pytest.mark.parametrize("unusual", [b"", b"X-Odd: \xe9\r\n"])
@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_the_answer_may_come_in_any_pieces(step: int, unusual: bytes) -> None:
    upgrade, answer = begun()
    answer = answer[:-2] + unusual + b"\r\n"
    for at in range(0, len(answer) - step, step):
        assert upgrade.feed(answer[at : at + step]) is None
    rest = answer[(len(answer) - 1) // step * step :]
    assert upgrade.feed(rest + b"early") == b"early"
    upgrade.let_go()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"HTTP/1.1 401 No\r\nContent-Length: 3\r\n\r\nwhy", "status 401 why"),
        (b"HTTP/1.1 503 Later\r\n\r\nsoon", "status 503 soon"),
        (b"SSH-2.0-OpenSSH_9\r\n", "no WebSocket server there"),
        (b"", "no WebSocket server there"),
        (b"HTTP/1.1 101 Fine\r\nUpgrade: websocket\r\n", "no WebSocket server there"),
    ],
)
def test_what_does_not_accept_is_told(answer: bytes, told: str) -> None:
    upgrade, _ = begun()
    with pytest.raises(ConnectFailed, match=told):  # noqa: PT012 - the refusal may need the end or not
        for piece in (answer[:9], answer[9:]):
            if piece:
                assert upgrade.feed(piece) is None
        upgrade.feed(b"")
    upgrade.let_go()


def test_a_head_without_end_is_given_up() -> None:
    upgrade, answer = begun()
    assert upgrade.feed(answer[:-2]) is None
    with pytest.raises(ConnectFailed):  # noqa: PT012 - which piece is too much is not the point
        for _ in range(400):
            upgrade.feed(b"X: " + b"x" * 8000 + b"\r\n")
    upgrade.let_go()
