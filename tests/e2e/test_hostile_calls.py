"""Calls that nobody honest makes: numbers at the edges, guessed ids, files and answers without an end."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.peer import Json, Peer, RemoteError
from tests.support.server_process import ServerProcess
from tests.support.ws_peer import WsPeer

Connect = Callable[..., WsPeer]
pytestmark = pytest.mark.ours_only("what the reference makes of attacks is its own affair")


@contextmanager
def answering(start: bytes, endless: bytes = b"") -> Iterator[str]:
    """A server of HTTP that sends some bytes, then others until nobody reads them."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def run() -> None:
            sock, _ = listening.accept()
            with sock:
                sock.settimeout(30)
                try:
                    sock.recv(65_536)
                    sock.sendall(start)
                    while endless:
                        sock.sendall(endless)
                except OSError:
                    pass  # it was given up

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        finally:
            thread.join()


def refused(peer: Peer, method: str, params: Json) -> tuple[int, str]:
    with pytest.raises(RemoteError) as caught:
        peer.call(method, params)
    return caught.value.code, caught.value.message


@pytest.mark.parametrize("offset", [2**63 - 1, 2**63, 2**64 - 1, 2**64, -1, 1e30])
def test_offsets_at_the_edges_are_refused(peer: WsPeer, tmp_path: Path, offset: float) -> None:
    (tmp_path / "f").write_bytes(b"content")
    peer.call("fs/open", {"handleId": "r", "path": f"file://{tmp_path}/f"})
    peer.call("fs/open", {"handleId": "w", "path": f"file://{tmp_path}/g", "mode": "replace"})
    read = {"handleId": "r", "offset": offset, "len": 100}
    write = {"handleId": "w", "offset": offset, "chunk": "aGVsbG8="}
    assert refused(peer, "fs/readBlock", read)[0] in (-32600, -32602)
    assert refused(peer, "fs/writeBlock", write)[0] in (-32600, -32602)
    assert (tmp_path / "g").stat().st_size == 0


@pytest.mark.parametrize(
    ("path", "text"),
    [
        # Of the tests, since the server lets nobody but root look into itself.
        (f"/proc/{os.getpid()}/pagemap", "file is too large to read: limit is 67108864 bytes"),
        ("/dev/zero", "path `/dev/zero` is not a file"),
    ],
)
def test_a_file_without_an_end_is_not_read(peer: WsPeer, path: str, text: str) -> None:
    assert refused(peer, "fs/readFile", {"path": f"file://{path}"}) == (-32600, text)


def test_a_guessed_or_foreign_session_is_not_given_out(connect: Connect) -> None:
    holder = connect()
    session_id = holder.open_session()
    for guess in ("", "\0", "../x", session_id.upper(), f"{session_id} "):
        with connect() as other:
            code, text = refused(other, "initialize", {"clientName": "x", "resumeSessionId": guess})
            assert (code, text) == (-32600, f"unknown session id {guess}")
    with connect() as other:
        code, _ = refused(other, "initialize", {"clientName": "x", "resumeSessionId": session_id})
        assert code == -32010
    assert holder.call("environment/info", {})["shell"]


@pytest.mark.parametrize(
    ("start", "endless"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"a: " + b"b" * 60_000 + b"\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"a" * 60_000),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n" * 10_000),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"ffff\r\n" + b"x" * 65_535 + b"\r\n"),
        (b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n", b""),
    ],
)
def test_an_answer_that_never_stops_is_given_up(peer: WsPeer, start: bytes, endless: bytes) -> None:
    with answering(start, endless) as url:
        request = {"requestId": "r", "method": "GET", "url": url, "headers": [], "streamResponse": False}
        assert refused(peer, "http/request", request)[0] == -32603


@pytest.mark.parametrize(
    "change",
    [
        {"method": "GET / HTTP/1.1\r\nX: y\r\n\r\nGET"},
        {"headers": [{"name": "a", "value": "b\r\nX: y"}]},
        {"headers": [{"name": "a\r\nX", "value": "b"}]},
    ],
)
def test_nothing_is_smuggled_into_a_request(peer: WsPeer, change: Json) -> None:
    request = {"requestId": "r", "method": "GET", "url": "http://127.0.0.1:1/", "headers": [], **change}
    assert refused(peer, "http/request", {**request, "streamResponse": False})[0] == -32602


@pytest.mark.parametrize(
    "text", ["[" * 1_000_000, '{"id":NaN,"method":"x"}', '{"id":1,"method":"\\ud800"}', "{" * 65_536]
)
def test_json_at_the_edges_is_answered(peer: WsPeer, server: ServerProcess, text: str) -> None:
    peer.send_text(text)
    answer = peer.receive_text()
    assert answer is not None
    assert b'"id":-1' in answer
    assert peer.call("environment/info", {})["shell"]
