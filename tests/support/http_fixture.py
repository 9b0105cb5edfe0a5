"""The small HTTP server that the http/request transcripts talk to.

It answers with exactly the headers the recording has, in that order, and shows in the body what it received.
Owns its listening socket and one daemon thread per connection; `stop` ends it.
"""

from __future__ import annotations

import base64
import json
import socket
import socketserver
import threading
import time
from email.utils import formatdate

SERVER = "fixture/1.0"
GZIPPED = base64.b64decode("H4sIAGwBAmsC/6vKLChITQEAV2jC4gYAAAA=")
TLS_HANDSHAKE = b"\x16"
SLOW_SECONDS = 2.0
PART_SECONDS = 0.2
PARTS = 3

Headers = list[tuple[str, str]]


class Handler(socketserver.BaseRequestHandler):
    """Serves one connection, request after request."""

    request: socket.socket

    def handle(self) -> None:
        """Read requests until the client goes or an answer needs the connection closed."""
        self.stream = self.request.makefile("rb")
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while self._serve():
                pass
        except OSError:
            pass
        finally:
            self.stream.close()

    def _serve(self) -> bool:
        if self.stream.peek(1)[:1] == TLS_HANDSHAKE:
            return False
        start = self.stream.readline().decode("latin-1").split()
        if len(start) != 3:
            return False
        headers: Headers = []
        while (line := self.stream.readline().decode("latin-1").rstrip("\r\n")) != "":
            name, _, value = line.partition(":")
            headers.append((name, value.strip()))
        length = int(next((value for name, value in headers if name.lower() == "content-length"), "0"))
        body = self.stream.read(length)
        return self._answer(start[0], start[1], headers, body)

    def _answer(self, method: str, path: str, headers: Headers, body: bytes) -> bool:
        if path.startswith("/echo"):
            shown = {"method": method, "path": path, "headers": headers, "body": body.decode("latin-1")}
            text = json.dumps(shown).encode()
            extra = [("Content-Type", "application/json"), ("X-Rep", "1"), ("X-Other", "o"), ("X-Rep", "2")]
            self._send(200, [*extra, ("Content-Length", str(len(text)))], b"" if method == "HEAD" else text)
        elif path in ("/redir", "/loop"):
            target = "/echo-redir" if path == "/redir" else "/loop"
            self._send(302, [("Location", target), ("Content-Length", "0")])
        elif path == "/slow":
            time.sleep(SLOW_SECONDS)
            self._send(200, [("Content-Length", "0")])
        elif path == "/gzip":
            self._send(200, [("Content-Encoding", "gzip"), ("Content-Length", str(len(GZIPPED)))], GZIPPED)
        elif path.startswith("/big"):
            self._send(200, [("Content-Length", "3000000")], b"x" * 3_000_000)
        elif path == "/short":
            self._send(200, [("Content-Length", "100")], b"only this")
            return False
        elif path.startswith("/stream"):
            return self._stream(path == "/stream-abort")
        elif path == "/204":
            self._send(204, [])
        else:
            self._send(404, [("Content-Length", "2")], b"no")
        return True

    def _send(self, status: int, headers: Headers, body: bytes = b"") -> None:
        fixed = [("Server", SERVER), ("Date", formatdate(usegmt=True))]
        head = "".join(f"{name}: {value}\r\n" for name, value in [*fixed, *headers])
        self.request.sendall(f"HTTP/1.1 {status} Fixture\r\n{head}\r\n".encode("latin-1") + body)

    def _stream(self, abort: bool) -> bool:
        self._send(200, [("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked")])
        for number in range(PARTS):
            part = f"part{number}\n".encode()
            self.request.sendall(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            time.sleep(PART_SECONDS)
        if not abort:
            self.request.sendall(b"0\r\n\r\n")
        return not abort


class HttpFixture(socketserver.ThreadingTCPServer):
    """The listening server; `port` is always five digits long, as in the recording's content lengths."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self) -> None:
        """Listen on a free port of the loopback and serve in a thread."""
        super().__init__(("127.0.0.1", 0), Handler)
        assert self.port >= 10_000, "the recorded lengths assume a port of five digits"
        self._thread = threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self.server_address[1])

    def stop(self) -> None:
        """Stop listening and wait for the accepting thread."""
        self.shutdown()
        self.server_close()
        self._thread.join()


def refused_port() -> int:
    """Return a port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
