"""HTTP on the one port: health, refusals and the upgrade, in the contract's order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.wire.handshake import Answer, BadRequest, answer, bad_request, parse_head

DATE = "Sat, 21 Nov 2026 00:00:00 GMT"
UPGRADE = (
    "GET / HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
)


def ask(head: str) -> Answer:
    return answer(parse_head(head.encode("latin-1")), DATE)


def status(reply: Answer) -> int:
    return int(reply.data.split(b" ", 2)[1])


def body(reply: Answer) -> bytes:
    return reply.data.partition(b"\r\n\r\n")[2]


def test_a_valid_upgrade_is_accepted_with_lower_case_names_in_the_contracts_order() -> None:
    reply = ask(UPGRADE)
    assert reply.upgraded
    assert reply.data.decode() == (
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        f"sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\ndate: {DATE}\r\n\r\n"
    )


def test_offered_extensions_and_subprotocols_are_ignored() -> None:
    reply = ask(UPGRADE + "\r\nSec-WebSocket-Extensions: permessage-deflate\r\nSec-WebSocket-Protocol: a, b")
    assert reply.data == ask(UPGRADE).data


def test_a_query_is_ignored() -> None:
    assert ask(UPGRADE.replace("GET / ", "GET /?a=/x ")).upgraded


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_readyz_answers_200_with_an_empty_body(method: str) -> None:
    reply = ask(f"{method} /readyz HTTP/1.1\r\nHost: x")
    assert reply.data.decode() == f"HTTP/1.1 200 OK\r\ncontent-length: 0\r\ndate: {DATE}\r\n\r\n"
    assert reply.keep_alive


def test_another_method_on_readyz_is_told_which_are_allowed() -> None:
    reply = ask("POST /readyz HTTP/1.1\r\nContent-Length: 0")
    assert status(reply) == 405
    assert b"\r\nallow: GET,HEAD\r\n" in reply.data
    assert reply.keep_alive


@pytest.mark.parametrize("value", ["", "null", "http://localhost"])
@pytest.mark.parametrize("path", ["/", "/readyz", "/nope"])
def test_any_origin_is_refused_on_every_path(path: str, value: str) -> None:
    reply = ask(UPGRADE.replace("GET / ", f"GET {path} ") + f"\r\nOrigin: {value}")
    assert (status(reply), body(reply)) == (403, b"")


@pytest.mark.parametrize("path", ["/readyz/", "/healthz", "/other"])
def test_other_paths_are_not_found_also_for_an_upgrade(path: str) -> None:
    assert status(ask(UPGRADE.replace("GET / ", f"GET {path} "))) == 404


@pytest.mark.parametrize(
    ("old", "new", "code", "text"),
    [
        ("GET", "POST", 405, "Request method must be `GET`"),
        ("Connection: keep-alive, Upgrade", "X: y", 400, "Connection header did not include 'upgrade'"),
        ("Upgrade: WebSocket", "X: y", 400, "`Upgrade` header did not include 'websocket'"),
        ("Version: 13", "Version: 8", 400, "`Sec-WebSocket-Version` header did not include '13'"),
        ("Sec-WebSocket-Key", "X", 400, "`Sec-WebSocket-Key` header missing"),
    ],
)
def test_each_missing_part_of_an_upgrade_is_named(old: str, new: str, code: int, text: str) -> None:
    reply = ask(UPGRADE.replace(old, new))
    assert (status(reply), body(reply).decode()) == (code, text)
    assert not reply.upgraded
    assert b"content-type: text/plain; charset=utf-8\r\n" in reply.data


def test_the_method_is_checked_before_the_connection_header() -> None:
    assert status(ask("POST / HTTP/1.1\r\nContent-Length: 0")) == 405


def test_http_1_0_is_answered_as_such_and_closed() -> None:
    reply = ask("GET /readyz HTTP/1.0")
    assert reply.data.startswith(b"HTTP/1.0 200 OK\r\n")
    assert not reply.keep_alive


def test_a_request_with_a_body_ends_the_connection_because_the_body_is_not_read() -> None:
    assert not ask("POST /readyz HTTP/1.1\r\nContent-Length: 5").keep_alive
    assert not ask("GET /readyz HTTP/1.1\r\nTransfer-Encoding: chunked").keep_alive


def test_an_upgrade_with_a_body_is_refused() -> None:
    reply = ask(UPGRADE + "\r\nContent-Length: 5")
    assert (status(reply), body(reply)) == (400, b"A WebSocket upgrade has no body")
    assert not reply.upgraded
    assert not reply.keep_alive
    assert ask(UPGRADE + "\r\nContent-Length: 0").upgraded


def test_connection_close_is_honoured() -> None:
    assert not ask("GET /readyz HTTP/1.1\r\nConnection: close").keep_alive


@pytest.mark.parametrize(
    "head",
    [
        "BAD",
        "GET / HTTP/2.0",
        "GET  / HTTP/1.1",
        "GET nope HTTP/1.1",
        "G T / HTTP/1.1",
        "GET / HTTP/1.1\r\nno colon",
        "GET / HTTP/1.1\r\n: no name",
        "GET / HTTP/1.1\r\nname : space before the colon",
        "GET / HTTP/1.1\r\nfolded: a\r\n  b",
        "GET /\x7f HTTP/1.1",
        "GET / HTTP/1.1\r\nHost: x\r\nHost: x",
        "GET / HTTP/1.1\r\nContent-Length: 0\r\nTransfer-Encoding: chunked",
        "GET / HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: 0",
        "GET / HTTP/1.1\r\nContent-Length: 0, 0",
        "GET / HTTP/1.1\r\nContent-Length: +0",
        "GET / HTTP/1.1\r\nContent-Length:",
        "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        "GET / HTTP/1.0\r\nTransfer-Encoding: chunked",
        "GET / HTTP/1.1\r\nA: b\nContent-Length: 5",
        "GET / HTTP/1.1\r\nA: b\rC: d",
        "GET / HTTP/1.1\r\nA: \0",
        "GET http://x/ HTTP/1.1",
        "",
    ],
)
def test_what_is_no_request_is_refused(head: str) -> None:
    with pytest.raises(BadRequest):
        parse_head(head.encode("latin-1"))


def test_which_bytes_names_and_values_hold() -> None:
    for byte in range(256):
        between = bytes([byte])
        in_name = between.isalnum() or between in b"!#$%&'*+-.^_`|~:"
        for name in (b"a%bc" % between, b"a%bc" % between + b"x" * 100):
            assert is_head(b"%b: v" % name) is in_name, between
        assert is_head(b"a: v%bw" % between) is (byte == ord("\t") or 0x20 <= byte != 0x7F), between


def is_head(line: bytes) -> bool:
    try:
        parse_head(b"GET / HTTP/1.1\r\n" + line)
    except BadRequest:
        return False
    return True


def test_the_answer_to_no_request_closes() -> None:
    reply = bad_request(DATE)
    assert reply.data.decode() == (
        f"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\ndate: {DATE}\r\n\r\n"
    )
    assert not reply.keep_alive
    assert status(bad_request(DATE, 431)) == 431


@given(st.binary(max_size=200))
def test_random_bytes_are_a_request_or_refused(data: bytes) -> None:
    try:
        request = parse_head(data)
    except BadRequest:
        return
    assert status(answer(request, DATE)) in (101, 200, 400, 403, 404, 405)
