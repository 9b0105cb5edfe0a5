"""An HTTP server that a test scripts byte by byte, and the ends of the service a test speaks to.

A script is a function of one accepted connection: what it receives and sends, and when the connection ends.
Everything runs in greenlets of the test's own process.
"""

from __future__ import annotations

import json
import struct
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import gevent
from gevent import socket
from gevent.ssl import SSLContext, SSLSocket

from execserver.protocol.http import HttpHeader, HttpRedirectPolicy, HttpRequestParams
from execserver.services.http.service import HttpService, HttpStreams
from execserver.settings import Settings
from tests.support.waiting import wait_until


class Peer:
    """One accepted connection."""

    def __init__(self, sock: socket.socket | SSLSocket, server: ScriptedServer) -> None:
        self.sock = sock
        self.server = server

    def read_request(self) -> bytes:
        """Receive a request with its body, note it with the server, and return it."""
        data = self._read_until(lambda data: b"\r\n\r\n" in data)
        head = data.partition(b"\r\n\r\n")[0]
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length: "):
                missing = len(head) + 4 + int(line[16:]) - len(data)
                while missing > 0 and (more := self.sock.recv(missing)):
                    data += more
                    missing -= len(more)
            elif line.startswith(b"transfer-encoding: "):
                data = self._read_until(lambda data: data.endswith(b"0\r\n\r\n"), data)
        if data:
            self.server.requests.append(data)
        return data

    def send(self, *pieces: bytes) -> None:
        """Send each piece by itself."""
        for piece in pieces:
            self.sock.sendall(piece)

    def reset(self) -> None:
        """End the connection with a TCP reset."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def wait_for_end(self) -> None:
        """Wait until the client has closed the connection."""
        try:
            while self.sock.recv(65536):
                pass
        except OSError:
            pass

    def _read_until(self, enough: Callable[[bytes], bool], data: bytes = b"") -> bytes:
        while not enough(data):
            try:
                more = self.sock.recv(65536)
            except OSError:
                return data
            if not more:
                return data
            data += more
        return data


Script = Callable[[Peer], None]


class ScriptedServer:
    """Listens on the loopback; each connection is played by the next script, the last one for ever."""

    def __init__(self, *scripts: Script, tls: SSLContext | None = None, family: int = socket.AF_INET) -> None:
        self._scripts = list(scripts)
        self._tls = tls
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        self._listener.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
        self._listener.listen(64)
        self.port: int = self._listener.getsockname()[1]
        self.place = f"127.0.0.1:{self.port}"
        self.requests: list[bytes] = []
        self.failures: list[OSError] = []
        self._accepted: list[socket.socket] = []
        self._greenlets: list[gevent.Greenlet[..., None]] = [gevent.spawn(self._accept)]

    @property
    def url(self) -> str:
        """The server's address as a URL without path."""
        return f"{'https' if self._tls else 'http'}://{self.place}"

    def close(self) -> None:
        """Stop, whatever the scripts are at."""
        gevent.killall(self._greenlets)
        for sock in [*self._accepted, self._listener]:
            sock.close()

    def _accept(self) -> None:
        while True:
            sock, _ = self._listener.accept()
            self._accepted.append(sock)
            script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
            self._greenlets.append(gevent.spawn(self._play, sock, script))

    def _play(self, sock: socket.socket, script: Script) -> None:
        connection: socket.socket | SSLSocket = sock
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
                connection.do_handshake()
            script(Peer(connection, self))
        except OSError as failure:
            self.failures.append(failure)
        finally:
            connection.close()


def answering(*pieces: bytes) -> Script:
    """A script that takes one request, sends these bytes and closes."""

    def play(peer: Peer) -> None:
        peer.read_request()
        peer.send(*pieces)

    return play


def silent(peer: Peer) -> None:
    """A script that takes a request and never answers."""
    peer.read_request()
    peer.wait_for_end()


def drip(peer: Peer) -> None:
    """A script that sends a head and one part of a body, then nothing."""
    peer.read_request()
    peer.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")
    peer.wait_for_end()


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


@contextmanager
def serving(
    *scripts: Script, tls: SSLContext | None = None, family: int = socket.AF_INET
) -> Iterator[ScriptedServer]:
    """Run a scripted server for a while."""
    server = ScriptedServer(*scripts, tls=tls, family=family)
    try:
        yield server
    finally:
        server.close()


class RecordingSink:
    """A MessageSink that keeps what it is given; takes more only while `open_for` is above zero."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.open_for = 1_000_000
        self.closed = False

    @property
    def has_room(self) -> bool:
        """Whether more is taken."""
        return self.open_for > 0

    def send(self, message: bytes) -> None:
        """Keep a message."""
        self.messages.append(json.loads(message))
        self.open_for -= 1

    def send_parts(self, *parts: bytes) -> None:
        """Keep a message given in parts."""
        self.send(b"".join(parts))

    carries_binary = False
    send_binary = send_parts

    def try_send(self, message: bytes) -> bool:
        """Take nothing this way."""
        return False

    @property
    def may_go_on(self) -> bool:
        """Whether `wait_for_room` would return True at once."""
        return self.has_room and not self.closed

    def hold(self) -> None:
        """Do nothing."""

    def release(self) -> None:
        """Do nothing."""

    def wait_for_room(self) -> bool:
        """Wait until more is taken."""
        while not self.has_room and not self.closed:
            gevent.sleep(0.001)
        return not self.closed

    def deltas(self, request_id: str = "r") -> list[Any]:
        """The params of the body deltas of one stream."""
        assert all(message["method"] == "http/request/bodyDelta" for message in self.messages)
        found = [message["params"] for message in self.messages]
        return [params for params in found if params["requestId"] == request_id]

    def has(self, count: int) -> bool:
        """Tell whether at least so many messages were given."""
        return len(self.messages) >= count

    def is_done(self, request_id: str = "r") -> bool:
        """Tell whether the last delta of a stream was sent."""
        return any(params["done"] for params in self.deltas(request_id))


class Caller:
    """One connection to the service, as a handler uses it."""

    def __init__(self, environ: Mapping[str, str] | None = None, **settings: float) -> None:
        self.sink = RecordingSink()
        self.service = HttpService(Settings(**settings), environ or {})
        self.streams = HttpStreams(self.service, self.sink)

    def ask(self, url: str, **members: Any) -> dict[str, Any]:
        """Make a buffered request; return status, headers as pairs and the body's bytes."""
        result = json.loads(bytes(self.streams.buffered(self.streams.prepare(params(url, **members)))))
        return shown(result)

    def stream(self, url: str, **members: Any) -> dict[str, Any]:
        """Make a streamed request, start its body and return the result."""
        stream = self.streams.stream(self.streams.prepare(params(url, stream_response=True, **members)))
        stream.start()
        return shown(json.loads(bytes(stream.result)))

    def stream_all(self, url: str, **members: Any) -> tuple[bytes, str | None]:
        """Make a streamed request; return its whole body and the error it ended with."""
        before = len(self.sink.messages)
        self.stream(url, **members)
        request_id = members.get("request_id", "r")
        wait_until(lambda: any(m["params"]["done"] for m in self.sink.messages[before:]), pause=gevent.sleep)
        deltas = [m["params"] for m in self.sink.messages[before:]]
        assert [each["seq"] for each in deltas] == list(range(1, len(deltas) + 1))
        assert {each["requestId"] for each in deltas} == {request_id}
        assert [each["done"] for each in deltas] == [False] * (len(deltas) - 1) + [True]
        return b"".join(b64decode(each["deltaBase64"]) for each in deltas), deltas[-1]["error"]


def params(url: str, **members: Any) -> HttpRequestParams:
    """Return the params of a request; headers are given as pairs."""
    headers = tuple(HttpHeader(name=name, value=value) for name, value in members.pop("headers", ()))
    if members.pop("stop", False):
        members["redirect_policy"] = HttpRedirectPolicy.STOP
    defaults: dict[str, Any] = {"method": "GET", "request_id": "r", "timeout_ms": 20_000}
    return HttpRequestParams(url=url, headers=headers, **{**defaults, **members})


def shown(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result in a form that is easy to compare."""
    return {
        "status": result["status"],
        "headers": [(header["name"], header["value"]) for header in result["headers"]],
        "body": b64decode(result["bodyBase64"]),
    }
