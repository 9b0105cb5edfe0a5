"""The short way for plain whole responses gives what the long way by h11 gives, or leaves them to it."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from execserver.http_client.response_events import Framing, ResponseEvent, ResponseHead, ResponseReader
from execserver.http_client.response_parser import ResponseParser
from execserver.http_client.whole_response import whole_response

PLAIN = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
WORDS = st.text(st.characters(min_codepoint=0, max_codepoint=255), max_size=6).map(
    lambda text: text.encode("latin-1")
)
NAMES = st.sampled_from(
    [
        *(b"content-length", b"Content-Length", b"content-type", b"connection", b"Transfer-Encoding", b"a"),
        *(b"x-y", b"a b", b"", b"\xff", b"upgrade", b"trailer", b"date", b"a_b", b"host"),
    ]
)
VALUES = st.sampled_from(
    [
        *(b"0", b"1", b"2", b"02", b"+2", b"2, 2", b"2 ", b" 2", b"close", b"keep-alive", b"chunked"),
        *(b"application/json", b"", b"a  b", b"a\tb", b"a b", b"\xc3\xa9", b"\x00", b"1" * 12),
    ]
)
LINES = st.lists(st.tuples(NAMES, VALUES) | st.tuples(st.just(b"content-length"), st.just(b"2")), max_size=4)
STATUSES = st.sampled_from([b"200", b"204", b"304", b"101", b"100", b"404", b"503", b"600", b"20", b"2000"])
VERSIONS = st.sampled_from([b"HTTP/1.1"] * 4 + [b"HTTP/1.0", b"HTTP/2.0", b"http/1.1"])
ENDS = st.sampled_from([b"\r\n"] * 6 + [b"\n", b"\r", b"\r\n "])
REASONS = st.sampled_from([b" OK", b"", b" ", b" Not Found", b" \xc3\xa9"])
METHODS = st.sampled_from(["POST", "GET", "HEAD", "CONNECT", "head"])


@st.composite
def responses(draw: st.DrawFn) -> bytes:
    """Return what is nearly always a response, and often a plain whole one."""
    end = draw(ENDS)
    head = draw(VERSIONS) + b" " + draw(STATUSES) + draw(REASONS) + end
    for name, value in draw(LINES):
        head += name + draw(st.sampled_from([b": ", b":", b" : "])) + value + end
    return head + end + draw(st.sampled_from([b"", b"a", b"ok", b"ok!"]) | WORDS)


def events(reader: ResponseReader) -> tuple[list[ResponseEvent], bool]:
    """Return what it says, and whether the connection may carry another request."""
    found: list[ResponseEvent] = []
    while not found or not isinstance(found[-1], Framing):
        event = reader.next_event()
        found.append(bytes(event) if isinstance(event, bytearray) else event)
    return found, reader.is_reusable


@given(METHODS, responses())
@example("POST", PLAIN)
@example("HEAD", PLAIN)
@example("GET", b"HTTP/1.1 204 No\r\ncontent-length: 2\r\n\r\nok")
@example("GET", PLAIN.replace(b"content-length: 2", b"content-length: 2\r\ncontent-length: 2"))
@example("GET", PLAIN.replace(b"content-length: 2", b"connection: close\r\ncontent-length: 2"))
@example("GET", PLAIN.replace(b"content-length: 2", b"content-length: 0") + b"more")
def test_the_short_way_says_what_the_long_way_says(method: str, response: bytes) -> None:
    short = whole_response(method, response)
    if short is None:
        return
    long = ResponseParser(method)
    long.receive_data(response)
    assert events(short) == events(long)


@pytest.mark.parametrize(
    "response",
    [
        PLAIN,
        b"HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 \r\nx: a b c\r\ncontent-length: 0\r\ndate: Sat, 28 Nov 2026 18:00:00 GMT\r\n\r\n",
    ],
)
def test_plain_whole_responses_take_the_short_way(response: bytes) -> None:
    found = whole_response("POST", response)
    assert found is not None
    head = found.next_event()
    assert isinstance(head, ResponseHead)
    assert head.status == int(response.split()[1])


@pytest.mark.parametrize(
    "response",
    [
        b"",
        PLAIN[:-1],
        PLAIN + b"!",
        PLAIN[:20],
        PLAIN.replace(b"1.1", b"1.0"),
        PLAIN.replace(b"200", b"100"),
        PLAIN.replace(b"content-length", b"content-length "),
        PLAIN.replace(b"content-length: 2", b"content-length: 2\r\ntransfer-encoding: chunked"),
        PLAIN.replace(b"content-length: 2", b"content-length: 2\r\nConnection: close"),
        PLAIN.replace(b"content-length: 2", b"content-length: 2\r\n folded: 1"),
        PLAIN.replace(b"content-length: 2", b"content-length: 2\r\ncontent-length: 3"),
        PLAIN.replace(b"content-length: 2", b"a: b"),
    ],
)
def test_all_others_are_left_to_the_long_way(response: bytes) -> None:
    assert whole_response("POST", response) is None


def test_what_comes_behind_the_response_ends_the_use_of_the_connection() -> None:
    found = whole_response("POST", PLAIN)
    assert found is not None
    assert found.is_reusable
    found.receive_data(b"HTTP/1.1")
    assert not found.is_reusable
