"""Responses that ours deliberately takes otherwise than the reference."""

from __future__ import annotations

import pytest

from execserver.protocol.errors import InternalError
from tests.support.http_peer import Caller, answering, serving

HEAD = b"HTTP/1.1 200 OK\r\n"
END = b"content-length: 1\r\n\r\na"
CHUNKED = b"\r\n3\r\nabc\r\n0\r\n\r\n"


def headers_of(response: bytes) -> list[tuple[str, str]]:
    with serving(answering(response)) as server:
        found: list[tuple[str, str]] = Caller().ask(server.url)["headers"]
    return found


def test_a_repeated_content_length_is_shown_once() -> None:
    assert headers_of(HEAD + b"content-length: 1\r\n" + END) == [("content-length", "1")]


def test_more_than_a_hundred_headers_are_taken() -> None:
    many = b"".join(b"a%d: x\r\n" % number for number in range(500))
    assert len(headers_of(HEAD + many + END)) == 501


def test_a_folded_header_is_one_value() -> None:
    assert headers_of(HEAD + b"a: b\r\n c\r\n" + END) == [("a", "b c"), ("content-length", "1")]


def test_http_1_0_may_send_chunks() -> None:
    head = b"HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n"
    assert headers_of(head + CHUNKED) == [("transfer-encoding", "chunked")]


def test_a_header_with_a_control_character_is_left_out() -> None:
    assert headers_of(HEAD + b"a: x\x01y\r\nb: 1\r\n" + END) == [("b", "1"), ("content-length", "1")]


@pytest.mark.parametrize(
    "response",
    [
        HEAD + b"transfer-encoding: gzip\r\n\r\nabc",
        HEAD + b"transfer-encoding: gzip, chunked\r\n" + CHUNKED,
        b"\r\n" + HEAD + END,
    ],
    ids=["another coding", "two codings", "an empty line first"],
)
def test_what_is_refused_although_the_reference_takes_it(response: bytes) -> None:
    with pytest.raises(InternalError, match="http/request failed: error sending request for url"):
        headers_of(response)
