"""Answers in their usual form: read as h11 reads them, or left to it."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.remote.usual_answer import UsualAnswer, usual_answer
from execserver.services.http.exchange import ResponseHead

DATED = b"date: Sun, 22 Nov 2026 05:00:00 GMT\r\n"


def by_h11(data: bytes) -> UsualAnswer:
    """Return what h11 makes of a whole answer to a POST request; raise what it raises."""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="POST", target="/", headers=[(b"host", b"-")]))
    client.send(h11.EndOfMessage())
    client.receive_data(data)
    head = client.next_event()
    assert isinstance(head, h11.Response)
    body = b""
    while isinstance(event := client.next_event(), h11.Data):
        body += event.data
    assert isinstance(event, h11.EndOfMessage)
    assert client.trailing_data == (b"", False)
    assert client.our_state is client.their_state is h11.DONE  # the connection goes on
    return UsualAnswer(ResponseHead(head.status_code, list(head.headers)), body)


def test_a_usual_answer_is_taken() -> None:
    data = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n{"valid":true}'
    found = usual_answer(data)
    assert found == by_h11(data)
    assert found is not None
    assert found.head.status == 200
    assert found.head.first(b"content-type") == b"application/json"
    assert found.body == b'{"valid":true}'


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nxxx",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nxx",
        b"HTTP/1.1 100 Continue\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\nxx",
        b"HTTP/1.1 200 OK\r\ncontent-length: +2\r\n\r\nxx",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2, 2\r\n\r\nxx",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nxx",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\nxx",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx:\r\n folded\r\n\r\nxx",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx: \x00\r\n\r\nxx",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx : y\r\n\r\nxx",
        b"HTTP/1.1 200 OK\ncontent-length: 2\n\nxx",
        b" HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nxx",
    ],
)
def test_every_other_form_is_left_to_h11(data: bytes) -> None:
    assert usual_answer(data) is None


@given(
    st.sampled_from([b"200", b"201", b"299", b"403", b"503"]),
    st.sampled_from([b"", b" ", b" OK", b" ~!"]),
    st.lists(
        st.tuples(
            st.from_regex(rb"\A[A-Za-z0-9_.!-]{1,12}\Z").filter(
                lambda name: name.lower() not in (b"connection", b"upgrade", b"te", b"expect")
            ),
            st.from_regex(rb"\A[\t -~]{0,20}\Z"),
        ),
        max_size=4,
    ),
    st.binary(max_size=40),
)
def test_what_is_taken_is_what_h11_reads(
    status: bytes, reason: bytes, lines: list[tuple[bytes, bytes]], body: bytes
) -> None:
    head = b"".join(b"%b:%b\r\n" % line for line in lines)
    length = b"Content-Length: %d\r\n" % len(body)
    data = b"HTTP/1.1 %b%b\r\n" % (status, reason) + head + length + DATED + b"\r\n" + body
    found = usual_answer(data)
    assert found is not None
    assert found == by_h11(data)
