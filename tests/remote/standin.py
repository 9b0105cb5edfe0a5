"""A JSON API on loopback that answers as a test says and keeps what it was asked."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Asked(NamedTuple):
    """One request: header names are lower case, in their order."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        """Return one header."""
        return dict(self.headers).get(name)


class Told(NamedTuple):
    """One answer."""

    status: int
    body: object = b""
    headers: tuple[tuple[str, str], ...] = ()
    delay_s: float = 0.0


Answer = Callable[[Asked], Told]


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: StandIn
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = [(name.lower(), value) for name, value in self.headers.items()]
        asked = Asked(self.command, self.path, headers, body)
        self.server.asked.append(asked)
        told = self.server.answer(asked)
        time.sleep(told.delay_s)
        data = told.body if isinstance(told.body, bytes) else json.dumps(told.body).encode()
        self.send_response_only(told.status)
        for name, value in told.headers:
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = _serve
    do_POST = _serve

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""


class StandIn(ThreadingHTTPServer):
    """The listening server; `answer` may be replaced at any time.  `stop` ends it."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, answer: Answer, certificate: str | None = None) -> None:
        """Listen on a free port of the loopback, with TLS if a file with certificate and key is given."""
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = answer
        self.asked: list[Asked] = []
        self._scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.socket = context.wrap_socket(self.socket, server_side=True)
            self._scheme = "https"
        self._thread = threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"{self._scheme}://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that leave."""

    def stop(self) -> None:
        """Stop listening and wait for the accepting thread."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def __enter__(self) -> StandIn:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()
