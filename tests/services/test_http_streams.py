"""Streamed bodies and the bounds of one connection."""

from __future__ import annotations

import json
import select
from base64 import b64decode
from functools import partial

import gevent
import pytest

from execserver.http_client.fetch import Answer
from execserver.protocol.errors import InternalError, InvalidParams, InvalidRequest
from execserver.services.http.body import Budget, buffered_result
from execserver.services.http.service import MAX_ACTIVE
from tests.support.http_peer import OK, Caller, Peer, answering, drip, params, serving, silent
from tests.support.waiting import wait_until

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def test_a_streamed_body_follows_the_result() -> None:
    def play(peer: Peer) -> None:
        peer.read_request()
        peer.send(CHUNKED)
        for number in range(3):
            wait_until(partial(caller.sink.has, number), pause=gevent.sleep)
            peer.send(b"6\r\npart%d\n\r\n" % number)
        peer.send(b"0\r\n\r\n")

    caller = Caller()
    with serving(play) as server:
        got = caller.stream(server.url)
        assert got == {"status": 200, "headers": [("transfer-encoding", "chunked")], "body": b""}
        wait_until(caller.sink.is_done, pause=gevent.sleep)
    assert [message["method"] for message in caller.sink.messages] == ["http/request/bodyDelta"] * 4
    rows = [list(message["params"].items()) for message in caller.sink.messages]
    assert rows == [
        [("requestId", "r"), ("seq", seq), ("deltaBase64", text), ("done", done), ("error", None)]
        for seq, text, done in [
            (1, "cGFydDAK", False),
            (2, "cGFydDEK", False),
            (3, "cGFydDIK", False),
            (4, "", True),
        ]
    ]


def test_a_body_that_is_empty_ends_at_once() -> None:
    with serving(answering(b"HTTP/1.1 204 No\r\n\r\n")) as server:
        assert Caller().stream_all(server.url) == (b"", None)


def test_a_streamed_body_that_breaks_off_says_so_after_what_came() -> None:
    with serving(answering(CHUNKED + b"3\r\nabc\r\n")) as server:
        assert Caller().stream_all(server.url) == (b"abc", "error decoding response body")


def test_pieces_stay_below_a_mebibyte_and_are_few() -> None:
    body = bytes(range(256)) * 40_000
    caller = Caller()
    with serving(answering(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body), body)) as server:
        got, error = caller.stream_all(server.url)
    assert (got == body, error) == (True, None)
    sizes = [len(b64decode(each["deltaBase64"])) for each in caller.sink.deltas()]
    assert max(sizes) <= 1024 * 1024
    assert len(sizes) < 256  # what a real client holds


def test_an_id_is_free_again_after_the_last_delta_and_after_a_failure() -> None:
    caller = Caller()
    with serving(silent) as gone:
        port = gone.port
    with pytest.raises(InternalError):
        caller.stream(f"http://127.0.0.1:{port}/")
    with serving(answering(OK)) as server:
        for _ in range(3):
            assert caller.stream_all(server.url) == (b"", None)


def test_a_buffered_request_may_have_the_id_of_a_stream() -> None:
    caller = Caller()
    with serving(drip, answering(OK)) as server:
        caller.stream(server.url)
        assert caller.ask(server.url)["status"] == 200
        with pytest.raises(InvalidParams, match="requestId `r` is already active"):
            caller.streams.prepare(params(server.url, stream_response=True))
        caller.streams.close()


def test_nothing_is_read_that_the_client_does_not_take() -> None:
    sent = 0
    connections: list[Peer] = []

    def endless(peer: Peer) -> None:
        nonlocal sent
        peer.read_request()
        peer.send(b"HTTP/1.1 200 OK\r\n\r\n")
        connections.append(peer)
        while True:
            peer.send(b"x" * 65536)
            sent += 65536

    caller = Caller()
    caller.sink.open_for = 1
    with serving(endless) as server:
        caller.stream(server.url)
        wait_until(partial(caller.sink.has, 1), pause=gevent.sleep)
        wait_until(lambda: not select.select([], [connections[0].sock], [], 0)[1], pause=gevent.sleep)
        assert len(caller.sink.messages) == 1
        assert sent < 16 * 1024 * 1024  # what the sockets hold
        caller.sink.open_for = 2
        wait_until(partial(caller.sink.has, 3), pause=gevent.sleep)
        caller.streams.close()


def test_streams_end_with_the_connection_without_a_word() -> None:
    ended = []

    def play(peer: Peer) -> None:
        drip(peer)
        ended.append(True)

    caller = Caller()
    with serving(play) as server:
        for number in range(3):
            caller.stream(server.url, request_id=str(number))
        wait_until(partial(caller.sink.has, 3), pause=gevent.sleep)
        caller.streams.close()
        wait_until(lambda: len(ended) == 3, pause=gevent.sleep)
    assert len(caller.sink.messages) == 3


def test_a_stream_that_was_never_started_ends_with_the_connection() -> None:
    ended = []

    def play(peer: Peer) -> None:
        drip(peer)
        ended.append(True)

    caller = Caller()
    with serving(play) as server:
        stream = caller.streams.stream(caller.streams.prepare(params(server.url, stream_response=True)))
        caller.streams.close()
        stream.start()
        wait_until(lambda: ended, pause=gevent.sleep)
    assert caller.sink.messages == []


def test_a_head_that_comes_after_the_end_of_the_connection_is_dropped() -> None:
    caller = Caller()

    def play(peer: Peer) -> None:
        peer.read_request()
        caller.streams.close()
        peer.send(CHUNKED + b"3\r\nabc\r\n0\r\n\r\n")
        peer.wait_for_end()

    with serving(play) as server:
        caller.stream(server.url)
    assert caller.sink.messages == []


def test_a_killed_request_closes_its_connection() -> None:
    ended = []

    def play(peer: Peer) -> None:
        silent(peer)
        ended.append(True)

    caller = Caller()
    with serving(play) as server:
        request = gevent.spawn(caller.ask, server.url, timeout_ms=None)
        wait_until(lambda: server.requests, pause=gevent.sleep)
        request.kill()
        wait_until(lambda: ended, pause=gevent.sleep)


# --- bounds ----------------------------------------------------------------------------------------------


def test_one_connection_has_so_many_requests_at_a_time() -> None:
    caller = Caller()
    for number in range(MAX_ACTIVE):
        caller.streams.prepare(params("http://x", stream_response=number % 2 == 0, request_id=str(number)))
    with pytest.raises(InvalidRequest, match="at most 128 HTTP requests may be active per connection"):
        caller.streams.prepare(params("http://x"))


def test_ended_requests_make_room() -> None:
    caller = Caller()
    with serving(answering(OK)) as server:
        for _ in range(MAX_ACTIVE + 1):
            caller.ask(server.url)
        with pytest.raises(InvalidParams):
            caller.ask("nope")
        assert caller.stream_all(server.url) == (b"", None)


LIMIT = 1024 * 1024


@pytest.mark.parametrize("announced", [True, False])
def test_an_answer_that_fits_into_no_message_is_refused(announced: bool) -> None:
    size = LIMIT
    head = b"HTTP/1.1 200 OK\r\n" + (b"content-length: %d\r\n\r\n" % size if announced else b"\r\n")
    with serving(answering(head, b"x" * size)) as server, pytest.raises(InternalError) as caught:
        Caller(client_message_bytes=LIMIT).ask(server.url)
    assert caught.value.message == (
        "failed to read http/request response body: the result would be larger than 983040 bytes; "
        "streamResponse has no such limit"
    )


def test_the_largest_answer_fits_into_a_message() -> None:
    size = (LIMIT - 64 * 1024 - 200) // 4 * 3
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size
    caller = Caller(client_message_bytes=LIMIT)
    with serving(answering(head, b"x" * size)) as server:
        result = caller.streams.buffered(caller.streams.prepare(params(server.url)))
    assert len(bytes(result)) < LIMIT - 64 * 1024
    assert len(b64decode(json.loads(bytes(result))["bodyBase64"])) == size


def test_an_announced_length_without_a_body_is_no_reason_to_refuse() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n"
    with serving(answering(head)) as server:
        assert Caller().ask(server.url, method="HEAD")["body"] == b""


def test_buffered_answers_of_all_connections_have_a_bound_together() -> None:
    budget = Budget(100)

    def answer(sock_server_url: str) -> Answer:
        caller = Caller()
        return caller.service.fetch(caller.streams.prepare(params(sock_server_url)))

    with serving(answering(b"HTTP/1.1 200 OK\r\ncontent-length: 60\r\n\r\n" + b"x" * 60)) as server:
        held = budget.take(50)
        assert held
        with pytest.raises(InternalError, match="too many buffered responses at a time"):
            buffered_result(answer(server.url), 1_000_000, budget)
        budget.give_back(50)
        assert b64decode(
            json.loads(bytes(buffered_result(answer(server.url), 1_000_000, budget)))["bodyBase64"]
        )
    assert budget.take(100)


def test_requests_run_side_by_side() -> None:
    caller = Caller()

    def play(peer: Peer) -> None:
        peer.read_request()
        wait_until(lambda: len(server.requests) == 20, pause=gevent.sleep)
        peer.send(OK)

    with serving(play) as server:
        requests = [gevent.spawn(caller.ask, server.url) for _ in range(20)]
        gevent.joinall(requests, raise_error=True)
    assert [request.get()["status"] for request in requests] == [200] * 20
