"""A registry and a rendezvous on loopback, in one small server that does what a test tells it.

By default it behaves: it registers executors, authorizes harnesses, and passes binary messages on by their
stream ids.  Everything can be changed while it runs: the answers, and what becomes of connections.  With
`routing` off a test is the harness itself: what the executor sends is in `executor.received`.

It runs on gevent, in the caller's hub or (`RelayThread`) in a thread with a hub of its own.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import gevent
from gevent import socket
from gevent.event import Event
from gevent.queue import Queue
from websockets.exceptions import ConnectionClosed, InvalidState
from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from execserver.wire.noise_keys import SECURITY_PROFILE
from execserver.wire.relay_frames import (
    RESET_HARNESS_LOST,
    InvalidFrame,
    RelayFrame,
    Reset,
    encode_frame,
    peek_stream_id,
)

MAX_BYTES = 256 * 1024


def listen() -> socket.socket:
    """Return a listening socket of gevent's own kind; its `create_server` makes one that blocks the loop."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.bind(("127.0.0.1", 0))
    sock.listen(64)
    return sock


class Call(NamedTuple):
    """One request to the registry."""

    verb: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any] | None


class Reply(NamedTuple):
    """One answer of the registry."""

    status: int
    body: object = None
    delay_s: float = 0.0


class Peer:
    """One accepted websocket; binary messages from it are in `received`, None behind the last one."""

    def __init__(self, sock: socket.socket, protocol: ServerProtocol, head: bytes) -> None:
        self.head = head.decode("latin-1")
        self.received: Queue[bytes | None] = Queue()
        self.texts: Queue[bytes] = Queue()
        self.pings = 0
        self.answers_pings = True
        self.reads = Event()
        self.reads.set()
        self._sock = sock
        self._protocol = protocol
        self._unsent: list[bytes] = []
        self._writing = False

    @property
    def is_open(self) -> bool:
        """Tell whether it is connected."""
        return self._sock.fileno() >= 0

    def send(self, data: bytes, *, text: bool = False) -> None:
        """Send one message."""
        try:
            if text:
                self._protocol.send_text(data)
            else:
                self._protocol.send_binary(data)
            self.flush()
        except (OSError, ConnectionClosed, InvalidState):
            pass  # it has left

    def raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._unsent.append(data)
        self._write()

    def ping(self, data: bytes = b"") -> None:
        """Send a ping."""
        self._protocol.send_ping(data)
        self.flush()

    def flush(self) -> None:
        """Write what the protocol wants written."""
        self._unsent += self._protocol.data_to_send()
        self._write()

    def _write(self) -> None:
        # Several greenlets send: bytes of another one would go into the frame in which the first one waits.
        if self._writing:
            return
        self._writing = True
        try:
            while data := b"".join(self._unsent):
                self._unsent.clear()
                self._sock.sendall(data)
        finally:
            self._writing = False

    def drop(self) -> None:
        """End the TCP connection without a word."""
        self._sock.close()

    def run(self, take: Callable[[bytes], None]) -> None:
        """Read until the peer is gone."""
        try:
            while self.reads.wait() and (data := self._sock.recv(65536)):
                self._protocol.receive_data(data)
                for event in self._protocol.events_received():
                    if isinstance(event, Frame):
                        self._frame(event, take)
                if self.answers_pings:
                    self.flush()
                else:
                    self._protocol.data_to_send()
                if self._protocol.state is not OPEN:
                    break
        except OSError:
            pass
        finally:
            self._sock.close()
            self.received.put(None)

    def _frame(self, frame: Frame, take: Callable[[bytes], None]) -> None:
        if frame.opcode is Opcode.PING:
            self.pings += 1
        elif frame.opcode is Opcode.BINARY:
            take(bytes(frame.data))
        elif frame.opcode is Opcode.TEXT:
            self.texts.put(bytes(frame.data))


class Relay:
    """The server.  `calls` holds what the registry was asked; `executors` every websocket of an executor."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.executors: list[Peer] = []
        self.harnesses: list[Peer] = []
        self.replies: dict[str, Callable[[Call], Reply]] = {
            "register": self._register,
            "connect": self._connect,
            "validate": lambda call: Reply(200, {"valid": True}),
        }
        self.upgrade_status = 101
        self.routing = True
        self.executor_key: object = None
        self.registrations = 0
        self._owners: dict[str, Peer] = {}
        self._loop = gevent.get_hub().loop
        self._listening = listen()
        self.port = int(self._listening.getsockname()[1])
        self._sockets: list[socket.socket] = []
        self._greenlets: list[gevent.Greenlet[..., None]] = [gevent.spawn(self._accept)]

    @property
    def url(self) -> str:
        """The registry's base URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def executor(self) -> Peer:
        """The executor's newest websocket."""
        return self.executors[-1]

    def asked(self, verb: str) -> list[Call]:
        """Return the calls of one kind."""
        return [call for call in self.calls if call.verb == verb]

    def soon(self, act: Callable[[], object]) -> None:
        """Have something done in the relay's own loop; may be called from any thread."""
        self._loop.run_callback_threadsafe(act)

    def close(self) -> None:
        """End everything."""
        self._listening.close()
        for peer in [*self.executors, *self.harnesses]:
            peer.drop()
        gevent.killall(self._greenlets)
        for sock in self._sockets:
            sock.close()  # also that of a greenlet that never began

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _register(self, call: Call) -> Reply:
        self.registrations += 1
        if call.body is None:  # the oldest contract
            url = f"ws://127.0.0.1:{self.port}/executor?n={self.registrations}"
            return Reply(200, {"executor_id": call.path.split("/")[3], "url": url})
        self.executor_key = call.body["executor_public_key"]
        return Reply(200, self._reply(call, "executor"))

    def _connect(self, call: Call) -> Reply:
        more = {"executor_public_key": self.executor_key, "harness_key_authorization": "let-me-in"}
        return Reply(200, self._reply(call, "harness") | more)

    def _reply(self, call: Call, role: str) -> dict[str, Any]:
        return {
            "environment_id": call.path.split("/")[3],
            "url": f"ws://127.0.0.1:{self.port}/{role}?n={self.registrations}",
            "security_profile": SECURITY_PROFILE,
            "executor_registration_id": f"reg-{self.registrations}",
        }

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listening.accept()
            except OSError:
                return
            self._sockets.append(sock)
            self._greenlets.append(gevent.spawn(self._serve, sock))

    def _serve(self, sock: socket.socket) -> None:
        with sock:
            while True:
                received = b""
                while b"\r\n\r\n" not in received:
                    data = sock.recv(65536)
                    if not data:
                        return
                    received += data
                head, _, rest = received.partition(b"\r\n\r\n")
                if b"upgrade: websocket" in head.lower():
                    self._upgrade(sock, head)
                    return
                self._answer(sock, head, rest)

    def _answer(self, sock: socket.socket, head: bytes, body: bytes) -> None:
        lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        while len(body) < int(headers.get("content-length", "0")):
            body += sock.recv(65536)
        path = lines[0].split()[1]
        call = Call(path.rpartition("/")[2], path, headers, json.loads(body) if body else None)
        self.calls.append(call)
        reply = self.replies[call.verb](call)
        gevent.sleep(reply.delay_s)
        data = b"" if reply.body is None else json.dumps(reply.body).encode()
        try:
            sock.sendall(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (reply.status, len(data)) + data)
        except OSError:
            pass

    def _upgrade(self, sock: socket.socket, head: bytes) -> None:
        if self.upgrade_status != 101:
            sock.sendall(b"HTTP/1.1 %d X\r\ncontent-length: 0\r\n\r\n" % self.upgrade_status)
            return
        protocol = ServerProtocol(max_size=MAX_BYTES)
        protocol.receive_data(head + b"\r\n\r\n")
        (request,) = protocol.events_received()
        protocol.send_response(protocol.accept(request))  # type: ignore[arg-type]
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = Peer(sock, protocol, head)
        peer.flush()
        if head.startswith(b"GET /executor"):
            self.executors.append(peer)
            peer.run(lambda data: self._from_executor(peer, data))
        else:
            self.harnesses.append(peer)
            peer.run(lambda data: self._from_harness(peer, data))
            self._harness_left(peer)

    def _from_executor(self, peer: Peer, data: bytes) -> None:
        if not self.routing:
            peer.received.put(data)
            return
        try:
            owner = self._owners.get(peek_stream_id(data))
        except InvalidFrame:
            return
        if owner is not None:
            owner.send(data)

    def _from_harness(self, peer: Peer, data: bytes) -> None:
        try:
            self._owners[peek_stream_id(data)] = peer
        except InvalidFrame:
            pass
        if self.executors:
            self.executor.send(data)

    def _harness_left(self, peer: Peer) -> None:
        for stream_id in [name for name, owner in self._owners.items() if owner is peer]:
            del self._owners[stream_id]
            if self.executors and self.executor.is_open:
                self.executor.send(encode_frame(RelayFrame(stream_id, Reset(RESET_HARNESS_LOST))))


class RelayThread:
    """A relay in a thread of its own, for tests that block; its attributes may be looked at from outside."""

    def __init__(self) -> None:
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._started.wait(20)

    def _run(self) -> None:
        self._stop = Event()
        waker = gevent.get_hub().loop.async_()
        waker.start(self._stop.set)
        self._wake = waker.send
        with Relay() as self.relay:
            self._started.set()
            self._stop.wait()
        waker.stop()
        waker.close()
        gevent.get_hub().destroy(destroy_loop=True)

    def close(self) -> None:
        """End it and wait for the thread."""
        self._wake()
        self._thread.join(10)

    def __enter__(self) -> Relay:
        return self.relay

    def __exit__(self, *exc_info: object) -> None:
        self.close()
