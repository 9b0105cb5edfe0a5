"""A crowd of scripted executors: each registers, connects, and comes again with the same URL when it is lost.

Greenlets with a websocket each, so that hundreds of environments cost the test little.  They know no Noise:
what is tested is the way to the relay.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from urllib.parse import urlsplit

import gevent
from gevent import socket
from gevent.pool import Pool

from tests.support.relay_process import key_object

_ANSWER_S = 10.0
_FIRST_AT_ONCE = 50
_PAUSE_S = (0.05, 0.25)  # as our executor's first


class Crowd:
    """The executors of some environments; `connected` counts those that are."""

    def __init__(self, url: str, tokens: Mapping[str, str]) -> None:
        """Register all and connect them; returns before they are connected."""
        parts = urlsplit(url)
        self.connected = 0
        self.refused: list[str] = []
        self._place = (parts.hostname or "", parts.port or 80)
        self._first = Pool(_FIRST_AT_ONCE)
        self._tokens = dict(tokens)
        self._greenlets = [gevent.spawn(self._live, name) for name in tokens]

    def close(self) -> None:
        """End all."""
        gevent.killall(self._greenlets)

    def _live(self, name: str) -> None:
        url = self._first.apply(self._register, (name,))
        while True:
            try:
                self._stay(url)
            except OSError:
                pass
            gevent.sleep(random.uniform(*_PAUSE_S))

    def _register(self, name: str) -> str:
        body = json.dumps({"security_profile": "noise_hybrid_ik_v1", "executor_public_key": key_object(1)})
        head = (
            f"POST /cloud/environment/{name}/register HTTP/1.1\r\nHost: relay\r\nConnection: close\r\n"
            f"Authorization: Bearer {self._tokens[name]}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        with socket.create_connection(self._place, _ANSWER_S) as sock:
            sock.sendall((head + body).encode())
            answer = b""
            while piece := sock.recv(65536):
                answer += piece
        return str(json.loads(answer.partition(b"\r\n\r\n")[2])["url"])

    def _stay(self, url: str) -> None:
        parts = urlsplit(url)
        with socket.create_connection(self._place, _ANSWER_S) as sock:
            sock.sendall(
                f"GET {parts.path}?{parts.query} HTTP/1.1\r\nHost: relay\r\nConnection: Upgrade\r\n"
                "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
            )
            answer = sock.recv(65536)
            if b" 101 " not in answer.partition(b"\r\n")[0]:
                self.refused.append(answer.partition(b"\r\n")[0].decode())
                return
            sock.settimeout(None)
            self.connected += 1
            try:
                while sock.recv(65536):
                    pass
            finally:
                self.connected -= 1
