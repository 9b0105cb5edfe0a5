"""`http/request` as a connection uses it: order of checks, redirects, time-outs, streams and bounds."""

from __future__ import annotations

import subprocess
import sys

import gevent
import pytest

from execserver.http_client.fetch import Deadline, DeadlinePassed
from execserver.protocol.errors import InternalError, InvalidParams
from tests.support.http_peer import OK, Caller, Peer, Script, answering, drip, params, serving, silent

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
BRIEF_MS = 2_000  # enough for what a server says at once, also on a busy machine


def redirect(location: str, status: int = 302) -> Script:
    return answering(
        b"HTTP/1.1 %d X\r\nlocation: %b\r\ncontent-length: 0\r\n\r\n" % (status, location.encode())
    )


def refusal(caller: Caller, url: str, **members: object) -> str:
    with pytest.raises(InvalidParams) as caught:
        caller.streams.prepare(params(url, **members))
    return caught.value.message


# --- checks ----------------------------------------------------------------------------------------------


def test_checks_are_made_in_the_contracts_order() -> None:
    caller = Caller()
    bad = [("b d", "")]
    assert refusal(caller, "ftp://x", method="B AD", headers=bad) == (
        "http/request method is invalid: invalid HTTP method"
    )
    assert refusal(caller, "nope", headers=bad) == "http/request url is invalid: relative URL without a base"
    assert refusal(caller, "ftp://x", headers=bad) == (
        "http/request only supports http and https URLs, got ftp"
    )
    assert refusal(caller, "http://x", headers=bad) == (
        "http/request header name is invalid: invalid HTTP header name"
    )
    caller.streams.prepare(params("http://x", stream_response=True))
    assert refusal(caller, "nope", method="", stream_response=True) == (
        "http/request streamResponse requestId `r` is already active"
    )


def test_a_refused_request_takes_no_place() -> None:
    caller = Caller()
    refusal(caller, "nope", stream_response=True)
    caller.streams.prepare(params("http://x", stream_response=True))


# --- buffered --------------------------------------------------------------------------------------------


def test_a_buffered_answer() -> None:
    with serving(answering(b"HTTP/1.1 404 No\r\nX-A: 1\r\ncontent-length: 2\r\n\r\nno")) as server:
        got = Caller().ask(f"{server.url}/a b?c#d", method="POST", body_base64=b"data")
    assert got == {"status": 404, "headers": [("x-a", "1"), ("content-length", "2")], "body": b"no"}
    assert server.requests == [
        b"POST /a%20b?c HTTP/1.1\r\naccept: */*\r\nhost: "
        + server.place.encode()
        + b"\r\ncontent-length: 4\r\n\r\ndata"
    ]


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 65_535, 65_537, 1_000_000])
def test_bodies_of_every_length_arrive_whole(size: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    body = body[:size]
    with serving(answering(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size, body)) as server:
        assert Caller().ask(server.url)["body"] == body


def test_a_large_request_body_arrives_whole() -> None:
    body = bytes(range(256)) * 20_000
    with serving(answering(OK)) as server:
        Caller().ask(server.url, method="PUT", body_base64=body)
    assert server.requests[0].partition(b"\r\n\r\n")[2] == body


def test_refused_and_unknown_hosts_fail_in_the_contracts_words() -> None:
    with serving(silent) as server:
        port = server.port
    with pytest.raises(InternalError) as caught:
        Caller().ask(f"http://u:p@127.0.0.1:{port}/x#f")
    assert caught.value.message == (
        f"http/request failed: error sending request for url (http://127.0.0.1:{port}/x#f)"
    )
    with pytest.raises(
        InternalError, match=r"error sending request for url \(http://no-such-host.invalid/\)"
    ):
        Caller().ask("http://no-such-host.invalid/")


def test_a_url_too_long_for_the_reference_is_refused() -> None:
    with pytest.raises(InternalError, match=r"^http/request failed: builder error for url \(http://h/aaa"):
        Caller().ask("http://h/" + "a" * 65_535)


# --- redirects -------------------------------------------------------------------------------------------


def test_a_redirect_is_followed() -> None:
    with serving(redirect("/n"), answering(OK)) as server:
        got = Caller().ask(f"{server.url}/a", method="POST", body_base64=b"x")
    assert got["status"] == 200
    place = server.place.encode()
    assert server.requests[1] == (
        b"GET /n HTTP/1.1\r\naccept: */*\r\nreferer: http://%b/a\r\nhost: %b\r\n\r\n" % (place, place)
    )


def test_a_redirect_is_the_answer_when_asked_to_stop() -> None:
    with serving(redirect("/n")) as server:
        got = Caller().ask(server.url, stop=True)
    assert (got["status"], got["headers"][0]) == (302, ("location", "/n"))
    assert len(server.requests) == 1


def chain(length: int) -> Script:
    """Redirects from /0 to /1 and so on, and answers at the end."""

    def play(peer: Peer) -> None:
        number = int(peer.read_request().split()[1][1:])
        head = b"HTTP/1.1 302 X\r\nlocation: /%d\r\ncontent-length: 0\r\n\r\n" % (number + 1)
        peer.send(head if number < length else OK)

    return play


def test_ten_redirects_are_followed() -> None:
    with serving(chain(10)) as server:
        assert Caller().ask(f"{server.url}/0")["status"] == 200
        assert len(server.requests) == 11


def test_the_eleventh_redirect_is_an_error() -> None:
    with serving(chain(11)) as server, pytest.raises(InternalError) as caught:
        Caller().ask(f"{server.url}/0")
    assert caught.value.message == f"http/request failed: error following redirect for url ({server.url}/10)"
    assert len(server.requests) == 11


def test_a_redirect_to_another_scheme_fails() -> None:
    with serving(redirect("ftp://x/")) as server, pytest.raises(InternalError) as caught:
        Caller().ask(server.url)
    assert caught.value.message == "http/request failed: builder error for url (ftp://x/)"


def test_a_failure_behind_a_redirect_names_the_url_asked_for() -> None:
    with serving(redirect("/b"), answering(b"junk")) as server, pytest.raises(InternalError) as caught:
        Caller().ask(f"{server.url}/a#f")
    assert caught.value.message.endswith(f"error sending request for url ({server.url}/a#f)")


def test_the_body_of_a_redirect_is_not_waited_for() -> None:
    def endless(peer: Peer) -> None:
        peer.read_request()
        peer.send(b"HTTP/1.1 302 X\r\nlocation: /b\r\ncontent-length: 10\r\n\r\n")
        peer.wait_for_end()

    with serving(endless, answering(OK)) as server:
        assert Caller().ask(server.url)["status"] == 200


# --- time-outs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout_ms", [0, 50])
def test_time_runs_out_before_the_head(timeout_ms: int) -> None:
    with serving(silent) as server, pytest.raises(InternalError, match="error sending request for url"):
        Caller().ask(server.url, timeout_ms=timeout_ms)


def test_no_time_at_all_asks_nobody() -> None:
    with serving(silent) as server:
        with pytest.raises(InternalError):
            Caller().ask(server.url, timeout_ms=0)
        assert server.requests == []


def test_time_runs_out_in_a_buffered_body() -> None:
    with serving(drip) as server, pytest.raises(InternalError) as caught:
        Caller().ask(server.url, timeout_ms=BRIEF_MS)
    assert caught.value.message == "failed to read http/request response body: error decoding response body"


def test_time_runs_out_in_a_streamed_body() -> None:
    with serving(drip) as server:
        assert Caller().stream_all(server.url, timeout_ms=BRIEF_MS) == (
            b"abc",
            "error decoding response body",
        )


def test_time_runs_over_redirects_as_a_whole() -> None:
    def slow(peer: Peer) -> None:
        peer.read_request()
        gevent.sleep(0.3)  # the point: each answer in time, all of them not
        peer.send(b"HTTP/1.1 302 X\r\nlocation: /\r\ncontent-length: 0\r\n\r\n")

    with serving(slow) as server:
        with pytest.raises(InternalError, match="error sending request for url"):
            Caller().ask(server.url, timeout_ms=BRIEF_MS)
        assert 1 < len(server.requests) < 11


def test_the_longest_timeout_is_a_timeout() -> None:
    with serving(answering(OK)) as server:
        assert Caller().ask(server.url, timeout_ms=2**64 - 1)["status"] == 200
        assert Caller().ask(server.url, timeout_ms=None)["status"] == 200


def test_a_deadline_that_has_passed_says_so_at_once() -> None:
    with pytest.raises(DeadlinePassed), Deadline(0.0).running():
        raise AssertionError("must not run")
    with Deadline(None).running():
        pass


# --- loading ---------------------------------------------------------------------------------------------


def test_the_service_brings_no_http_library_and_no_tls() -> None:
    program = (
        "import sys; from execserver.services.http.service import HttpService, HttpStreams; "
        "from execserver.settings import Settings; HttpStreams(HttpService(Settings(), {}), None); "
        "print(sorted({'h11', 'ssl', 'gevent.ssl', 'http.client'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
