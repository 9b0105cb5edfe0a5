"""Heads of HTTP messages: read strictly, or not at all."""

from __future__ import annotations

import time

import pytest

from execserver.egress.http_heads import (
    MAX_HEAD_BYTES,
    BadHead,
    Body,
    head_length,
    parse_request,
    parse_response,
    written,
)


def head(*lines: str) -> bytes:
    return "\r\n".join((*lines, "", "")).encode("latin-1")


def test_a_request_is_read() -> None:
    request = parse_request(head("POST http://a/b HTTP/1.1", "Host: a", "X-A:  b c\t", "Empty:"))
    assert (request.method, request.target, request.minor) == ("POST", "http://a/b", 1)
    assert request.fields == [(b"Host", b"a"), (b"X-A", b"b c"), (b"Empty", b"")]
    assert request.keeps_alive


@pytest.mark.parametrize(
    "data",
    [
        head("junk"),
        head("GET / HTTP/2.0"),
        head("GET  / HTTP/1.1"),
        head("GET / HTTP/1.1 "),
        head("GET /\x00 HTTP/1.1"),
        head("GET /\xe4 HTTP/1.1"),
        head("G(T / HTTP/1.1"),
        head("GET / HTTP/1.1", "Host : a"),
        head("GET / HTTP/1.1", "Host: a", " folded"),
        head("GET / HTTP/1.1", "\tHost: a"),
        head("GET / HTTP/1.1", "no colon"),
        head("GET / HTTP/1.1", ": x"),
        head("GET / HTTP/1.1", "A: x\rB: y"),
        head("GET / HTTP/1.1", "A: x\nB: y"),
        head("GET / HTTP/1.1", "A: x\x00y"),
        head("GET / HTTP/1.1", "Host: a", "Host: b"),
        head("GET / HTTP/1.1", "Host: a", "host: a"),
        head("GET / HTTP/1.1", "Content-Length: 1", "Transfer-Encoding: chunked"),
        head("GET / HTTP/1.1", "Content-Length: 1", "Content-Length: 2"),
        head("GET / HTTP/1.1", "Content-Length: 1", "Content-Length: 1"),
        head("GET / HTTP/1.1", "Content-Length: 1, 1"),
        head("GET / HTTP/1.1", "Content-Length: +1"),
        head("GET / HTTP/1.1", "Content-Length: 0x1"),
        head("GET / HTTP/1.1", "Content-Length: -1"),
        head("GET / HTTP/1.1", "Content-Length:"),
        head("GET / HTTP/1.1", "Content-Length: 9999999999999999999"),
        head("GET / HTTP/1.1", "Transfer-Encoding: gzip, chunked"),
        head("GET / HTTP/1.1", "Transfer-Encoding: xchunked"),
        head("GET / HTTP/1.1", "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
        head("GET / HTTP/1.0", "Transfer-Encoding: chunked"),
        head("GET / HTTP/1.1", *["A: b"] * 129),
        head("GET / HTTP/1.1", "Content-Length: 1", "Connection: content-length"),
        head("GET / HTTP/1.1", "Host: a", "Connection: keep-alive, \tHOST"),
    ],
)
def test_an_ambiguous_request_is_refused(data: bytes) -> None:
    with pytest.raises(BadHead):
        parse_request(data)


@pytest.mark.parametrize(
    "data",
    [
        head("HTTP/1.1 20 OK"),
        head("HTTP/1.1 600 OK"),
        head("HTTP/2 200 OK"),
        head("HTTP/1.1 200 O\x00K"),
        head("HTTP/1.1 200 OK", "A b"),
        head("HTTP/1.1 200 OK", "Content-Length: 1", "Connection: Content-Length"),
    ],
)
def test_a_bad_response_is_refused(data: bytes) -> None:
    with pytest.raises(BadHead):
        parse_response(data)


@pytest.mark.parametrize(
    ("lines", "method", "body"),
    [
        (("HTTP/1.1 200 OK", "Content-Length: 3"), "GET", (Body.LENGTH, 3)),
        (("HTTP/1.1 200 OK", "Content-Length: 3"), "HEAD", (Body.NONE, 0)),
        (("HTTP/1.1 304 Not Modified", "Content-Length: 3"), "GET", (Body.NONE, 0)),
        (("HTTP/1.1 204 No Content",), "GET", (Body.NONE, 0)),
        (("HTTP/1.1 200",), "GET", (Body.UNTIL_CLOSE, 0)),
        (("HTTP/1.1 200 OK", "Transfer-Encoding: Chunked"), "GET", (Body.CHUNKED, 0)),
    ],
)
def test_the_end_of_a_response_is_known(lines: tuple[str, ...], method: str, body: tuple[Body, int]) -> None:
    assert parse_response(head(*lines)).body(method) == body


def test_a_response_with_two_lengths_is_refused() -> None:
    for fields in (("Content-Length: 1", "Transfer-Encoding: chunked"), ("Content-Length: 1",) * 2):
        with pytest.raises(BadHead):
            parse_response(head("HTTP/1.1 200 OK", *fields)).body("GET")


def test_what_is_for_this_hop_is_not_passed_on() -> None:
    request = parse_request(
        head(
            *("GET / HTTP/1.1", "Host: a", "Connection: X-Mine, close", "X-Mine: 1", "Keep-Alive: 1"),
            *("Proxy-Authorization: Basic c2VjcmV0", "PROXY-Connection: keep-alive", "Upgrade: websocket"),
            *("TE: trailers", "X-Theirs: 2"),
        )
    )
    assert request.passed_on() == [(b"Host", b"a"), (b"X-Theirs", b"2")]
    assert not request.keeps_alive


def test_an_old_client_has_to_ask_for_another_request() -> None:
    assert not parse_request(head("GET / HTTP/1.0")).keeps_alive
    assert parse_request(head("GET / HTTP/1.0", "Connection: Keep-Alive")).keeps_alive


def test_a_head_is_complete_with_an_empty_line() -> None:
    data = head("GET / HTTP/1.1", "Host: a")
    assert [head_length(data[:cut]) for cut in range(len(data))] == [0] * len(data)
    assert head_length(data + b"more") == len(data)


def test_a_head_that_does_not_end_is_refused() -> None:
    assert head_length(b"x" * (MAX_HEAD_BYTES - 1)) == 0
    with pytest.raises(BadHead):
        head_length(b"x" * MAX_HEAD_BYTES)


@pytest.mark.parametrize("value", [" " * 60_000 + "\x01", ("a " * 30_000) + "\x01", ", " * 30_000])
def test_a_long_field_takes_no_long_time(value: str) -> None:
    began = time.process_time()
    with pytest.raises(BadHead):
        parse_request(head("GET / HTTP/1.1", f"Connection: {value}", "no colon"))
    assert time.process_time() - began < 1


def test_a_head_is_written() -> None:
    assert written(b"GET / HTTP/1.1", [(b"A", b"b")]) == b"GET / HTTP/1.1\r\nA: b\r\n\r\n"
