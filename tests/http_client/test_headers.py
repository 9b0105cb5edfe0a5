"""The ordered map of header lines, and what a token is."""

from __future__ import annotations

from execserver.http_client.headers import Headers, is_token


def test_tokens_are_those_of_http() -> None:
    allowed = {chr(code) for code in range(256) if is_token("a" + chr(code))}
    letters = "abcdefghijklmnopqrstuvwxyz"
    assert allowed == set("!#$%&'*+-.^_`|~0123456789" + letters + letters.upper())
    assert not is_token("")


def test_removing_a_name_moves_the_last_one_into_the_gap() -> None:
    headers = Headers()
    for name in (b"a", b"b", b"c", b"b", b"d"):
        headers.add(name, b"1")
    headers.remove(b"b")
    headers.remove(b"missing")
    assert [name for name, _ in headers] == [b"a", b"d", b"c"]
    headers.remove(b"c")
    assert [name for name, _ in headers] == [b"a", b"d"]


def test_a_copy_changes_independently() -> None:
    headers = Headers()
    headers.add(b"a", b"1")
    copy = headers.copy()
    copy.add(b"a", b"2")
    copy.set(b"b", b"3")
    assert headers.encode() == b"a: 1\r\n"
    assert headers.values(b"a") == [b"1"]
