"""A relay in this process, and scripted ends that come to it; all waits in the event loop of the test."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import gevent
from gevent import socket

from execserver.listen_url import WsListen
from execserver.listening import bind
from execserver.relay.admission import Admission
from execserver.relay.api import Api
from execserver.relay.limits import Limits
from execserver.relay.listener import RelayListener
from execserver.relay.metrics import Metrics
from execserver.relay.registry import Registry
from execserver.relay.rendezvous import Rendezvous
from execserver.relay.state import MemoryState, RelayState
from execserver.relay.tokens import TokenBook, create
from execserver.settings import Settings
from execserver.wire.relay_frames import Body, RelayFrame, decode_frame, encode_frame
from tests.support.greenlets import turns
from tests.support.relay_process import key_object, masked_frame
from tests.support.waiting import wait_until

NAME = "box-1"
LIMITS = Limits(calls_per_s=1_000_000, grants=4, resume_grace_s=0.02, close_timeout_s=0.5)


class RelayEnd:
    """One websocket of an executor or a harness; every read gives the relay its turn."""

    def __init__(self, port: int, url: str) -> None:
        self.sock = connected(port)
        path = url[url.index("/rendezvous") :]
        self.sock.sendall(
            f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
        )
        self.received = b""
        while b"\r\n\r\n" not in self.received:
            self.fill()
        head, _, self.received = self.received.partition(b"\r\n\r\n")
        assert b" 101 " in head, head

    def fill(self) -> None:
        data = self.sock.recv(1 << 18)
        assert data, "the relay hung up"
        self.received += data

    def send(self, stream_id: str, body: Body) -> None:
        self.sock.sendall(masked_frame(2, encode_frame(RelayFrame(stream_id, body))))

    def receive(self) -> Body:
        """Return what the next frame says."""
        while True:
            head, size = 2, self.received[1] if len(self.received) > 1 else 0
            if size >= 126:
                wide = 2 if size == 126 else 8
                head, size = 2 + wide, int.from_bytes(self.received[2 : 2 + wide], "big")
            if len(self.received) >= max(2, head + size):
                message, self.received = self.received[head : head + size], self.received[head + size :]
                return decode_frame(message).body
            self.fill()

    def leave(self) -> None:
        """Say goodbye, and wait for the relay's."""
        self.sock.sendall(masked_frame(8, b"\x03\xe8"))
        while self.sock.recv(4096):
            pass
        self.sock.close()

    def drop(self) -> None:
        self.sock.close()


def connected(port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.settimeout(20)
    sock.connect(("127.0.0.1", port))
    return sock


class RelayStage:
    """A relay in this process, and those who come to it."""

    def __init__(self, folder: Path, limits: Limits = LIMITS, state: RelayState | None = None) -> None:
        state = state or MemoryState()
        token_file = str(folder / "tokens.json")
        _, self.token = create(token_file, NAME, "both")
        self.book, metrics = TokenBook(token_file), Metrics()
        self.rendezvous = Rendezvous(state, self.book, limits, metrics, time.time, 30.0)
        registry = Registry(state, self.rendezvous, limits, metrics, time.time)
        sock = bind(WsListen("127.0.0.1", 0), Settings())
        self.port = int(sock.getsockname()[1])
        base = f"ws://127.0.0.1:{self.port}"
        api = Api(
            *(registry, self.rendezvous, self.book, metrics),
            base=base,
            fixed_base=True,
            public_metrics=False,
        )
        self.admission = Admission(
            limits.connections, self.rendezvous.count_sockets, self.rendezvous.count_sockets_of
        )
        self.listener = RelayListener(sock, limits, self.admission, api, self.rendezvous.attach)
        self.listener.start()

    def call(self, name: str, body: object) -> Any:
        """Make a registry call on a connection of its own."""
        sock = connected(self.port)
        data = json.dumps(body).encode()
        sock.sendall(
            f"POST /cloud/environment/{NAME}/{name} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            f"Authorization: Bearer {self.token}\r\nContent-Length: {len(data)}\r\n\r\n".encode()
            + data
        )
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
        sock.close()
        return json.loads(answer.partition(b"\r\n\r\n")[2])

    def executor(self) -> RelayEnd:
        body = {"security_profile": "noise_hybrid_ik_v1", "executor_public_key": key_object(0)}
        return RelayEnd(self.port, self.call("register", body)["url"])

    def harness(self, seed: int = 1000) -> RelayEnd:
        return RelayEnd(self.port, self.call("connect", {"harness_public_key": key_object(seed)})["url"])

    def gauge(self, name: str) -> float:
        """Return a figure of the metrics page."""
        return self.rendezvous.gauges()[name][1]

    def settle(self, sockets: int = 0) -> None:
        """Wait until there is nothing but so many WebSockets: a busy kernel may tell late who has left."""

        def is_quiet() -> bool:
            return (
                self.rendezvous.count_sockets() == sockets
                and not len(self.admission)
                and not self.gauge("streams")
            )

        def stays_quiet() -> bool:
            turns()  # in which somebody may come, or the last one end
            was_quiet = is_quiet()
            turns()
            return was_quiet and is_quiet()

        wait_until(stays_quiet, pause=gevent.sleep)

    def close(self) -> None:
        self.rendezvous.end()
        self.listener.close()
