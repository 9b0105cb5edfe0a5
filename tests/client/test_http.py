"""HTTP requests through a real server, to one this test runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import gevent
import pytest
from gevent import socket
from gevent.pywsgi import WSGIServer

from execserver.client import ExecServerClient, HttpFailed, InternalError, InvalidParamsError


def application(environ: dict[str, Any], start: Callable[..., object]) -> Iterable[bytes]:
    """Answer by path."""
    path = environ["PATH_INFO"]
    if path == "/echo":
        body = environ["wsgi.input"].read()
        start("201 Created", [("X-Seen", environ.get("HTTP_X_MINE", "")), ("X-Two", "a"), ("X-Two", "b")])
        return [environ["REQUEST_METHOD"].encode() + b" " + body]
    length = "100" if path == "/cut" else "3000000"
    start("200 OK", [("Content-Length", length), ("Connection", "close")])
    if path == "/cut":
        return [b"only this"]
    return (b"%06d" % number * 5000 for number in range(100))


@pytest.fixture
def url() -> Iterator[str]:
    server = WSGIServer(("127.0.0.1", 0), application, log=None, error_log=None)
    server.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.stop(timeout=1)


BODY = b"".join(b"%06d" % number * 5000 for number in range(100))


def test_a_whole_answer(remote: ExecServerClient, url: str) -> None:
    answer = remote.http_request("POST", f"{url}/echo", headers={"X-Mine": "v"}, body=b"data")
    assert (answer.status, answer.body) == (201, b"POST data")
    assert answer.header("X-SEEN") == "v"
    assert [header.value for header in answer.headers if header.name == "x-two"] == ["a", "b"]
    assert answer.header("no-such") is None


def test_a_body_in_pieces(remote: ExecServerClient, url: str) -> None:
    with remote.http_stream("GET", f"{url}/big", headers=[("a", "b")]) as stream:
        assert stream.status == 200
        assert stream.header("content-length") == "3000000"
        assert stream.read() == BODY


def test_several_streams_at_once(remote: ExecServerClient, url: str) -> None:
    readers = [gevent.spawn(lambda: remote.http_stream("GET", f"{url}/big").read()) for _ in range(4)]
    assert [reader.get(timeout=30) == BODY for reader in readers] == [True] * 4


def test_a_body_that_is_cut_fails_after_what_came(remote: ExecServerClient, url: str) -> None:
    stream = remote.http_stream("GET", f"{url}/cut")
    assert next(stream) == b"only this"
    with pytest.raises(HttpFailed, match="error decoding response body"):
        next(stream)


def test_a_stream_that_is_left_does_not_disturb(remote: ExecServerClient, url: str) -> None:
    with remote.http_stream("GET", f"{url}/big"):
        pass
    assert remote.http_request("GET", f"{url}/big").body == BODY


def test_failures_are_errors(remote: ExecServerClient) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(InternalError, match="http/request failed: error sending request"):
            remote.http_request("GET", f"http://127.0.0.1:{unused.getsockname()[1]}/")
    with pytest.raises(InvalidParamsError, match="only supports http and https"):
        remote.http_stream("GET", "ftp://host/")
