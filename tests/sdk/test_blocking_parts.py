"""Ports, HTTP requests and watches of the blocking client, with a real server and plain sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from execserver.client.errors import InvalidRequestError
from execserver_client.sync._portal import Portal
from execserver_client.sync.http import Http
from execserver_client.sync.ports import Ports
from execserver_client.sync.watches import FileWatch
from tests.sdk.parts import Client, connect

HERE = "127.0.0.1"


class Parts:
    """What a blocking box is made of."""

    def __init__(self, portal: Portal, client: Client) -> None:
        self.portal = portal
        self.client = client
        self.ports = Ports(portal, client.ports)
        self.http = Http(portal, client.http)


@pytest.fixture
def parts(url: str) -> Iterator[Parts]:
    portal = Portal()
    connecting = connect(url)
    yield Parts(portal, portal.call(connecting.__aenter__))
    portal.call(connecting.__aexit__, None, None, None)
    portal.close()


@pytest.fixture
def there() -> Iterator[socket.socket]:
    with socket.create_server((HERE, 0)) as listener:
        listener.settimeout(20)
        yield listener


def test_a_stream_is_written_and_read(parts: Parts, there: socket.socket) -> None:
    with parts.ports.open(HERE, there.getsockname()[1]) as stream:
        far, _ = there.accept()
        with far:
            stream.write(b"hello")
            stream.write_eof()
            assert far.makefile("rb").read() == b"hello"
            far.sendall(b"there")
        assert b"".join(stream) == b"there"
    assert parts.ports.list().streams == ()


def test_a_listener_gives_streams(parts: Parts) -> None:
    with parts.ports.listen() as listening:
        with socket.create_connection((HERE, listening.address.port)) as near:
            stream = next(listening)
            stream.write(b"hello")
            assert near.recv(5) == b"hello"
            stream.close()
        listening.close()
        assert list(listening) == []


def test_a_port_of_this_machine_leads_through_the_box(parts: Parts, there: socket.socket) -> None:
    with parts.ports.forward(0, HERE, there.getsockname()[1]) as forward:
        with socket.create_connection(forward.address) as near:
            far, _ = there.accept()
            with far:
                near.sendall(b"hello")
                assert far.recv(5) == b"hello"
        assert forward.last_error is None
    with pytest.raises(InvalidRequestError):
        parts.ports.open("192.0.2.1", 80)


class Answer(BaseHTTPRequestHandler):
    """Answers with its path."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.path.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def test_requests_and_bodies_in_pieces(parts: Parts) -> None:
    with HTTPServer((HERE, 0), Answer) as web:
        serving = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        address = f"http://{HERE}:{web.server_port}"
        assert parts.http.request("GET", f"{address}/whole").body == b"/whole"
        with parts.http.stream("GET", f"{address}/pieces") as response:
            assert (response.status, b"".join(response)) == (200, b"/pieces")
        web.shutdown()
        serving.join()


def test_changes_are_iterated(parts: Parts, tmp_path: Path) -> None:
    opening = parts.client.watch(tmp_path, coalesce=0.0)
    with FileWatch(parts.portal, parts.portal.call(opening.__aenter__)) as watch:
        (tmp_path / "file").write_bytes(b"")
        batch = next(watch)
        assert [change.path.native() for change in batch.changes][:1] == [bytes(tmp_path / "file")]
