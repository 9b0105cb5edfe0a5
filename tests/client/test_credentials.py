"""To whom a client shows its token, and how."""

from __future__ import annotations

from pathlib import Path

import pytest

from execserver.client.carriers.credentials import headers_for
from execserver.client.carriers.urls import parse_url
from execserver.client.errors import InvalidUrl, TokenFileUnusable
from execserver.client.options import ExecServerClientConnectOptions

LOCAL = parse_url("ws://127.0.0.1:1")


def shown(url: str, **options: object) -> dict[str, str]:
    chosen = ExecServerClientConnectOptions(**options)  # type: ignore[arg-type]
    return headers_for(parse_url(url), chosen)


@pytest.mark.parametrize(
    "url", ["ws://127.0.0.1:1", "ws://localhost:1", "ws://[::1]:1", "wss://devbox.example", "unix:///run/s"]
)
def test_a_token_is_shown_where_nobody_listens_on_the_way(url: str) -> None:
    assert shown(url, token="abc") == {"Authorization": "Bearer abc"}


@pytest.mark.parametrize("url", ["ws://devbox.example", "ws://192.0.2.1:1", "ws://127.evil.example"])
def test_a_token_is_not_shown_to_a_network(url: str) -> None:
    with pytest.raises(InvalidUrl, match="others could read it"):
        shown(url, token="abc")
    assert shown(url) == {}


def test_a_token_file_is_read_for_each_connection(tmp_path: Path) -> None:
    file = tmp_path / "token"
    for token in ("one", "two"):
        file.write_text(f" {token}\n")
        assert shown("ws://127.0.0.1:1", token_file=str(file)) == {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize("token", ["", "a\nb", "a\r\nX: y", "ö", "\0"])
def test_what_no_header_can_hold_is_refused_without_showing_it(token: str) -> None:
    with pytest.raises(InvalidUrl) as refused:
        shown("ws://127.0.0.1:1", token=token)
    assert not token or token not in str(refused.value)


def test_a_token_file_that_cannot_be_read_or_is_too_large_is_told(tmp_path: Path) -> None:
    with pytest.raises(TokenFileUnusable, match="cannot read the token file"):
        shown("ws://127.0.0.1:1", token_file=str(tmp_path / "none"))
    with pytest.raises(TokenFileUnusable, match="too large"):
        shown("ws://127.0.0.1:1", token_file="/dev/zero")


def test_the_token_replaces_a_header_and_is_in_no_repr() -> None:
    options = ExecServerClientConnectOptions(token="secret-abc", headers={"Authorization": "x", "A": "b"})
    assert headers_for(LOCAL, options) == {"Authorization": "Bearer secret-abc", "A": "b"}
    assert "secret-abc" not in repr(options)


@pytest.mark.parametrize("url", ["unix://", "unix://x", "unix:x", "http://x", ""])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(InvalidUrl):
        parse_url(url)
