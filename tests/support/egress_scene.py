"""A real proxy on loopback, with real sockets on both sides; only the names are made up.

No test may own a name on a name server, so `Names` answers in its place, each time with the next answer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import gevent
from gevent import socket

from execserver.egress.config import domain_rules
from execserver.egress.decisions import DecisionRecord, Mode
from execserver.egress.policy import EgressPolicy
from execserver.http_client.connect import Address, SocketConnector
from execserver.services.egress.judging import Ask
from execserver.services.egress.proxy import EgressProxy
from execserver.services.egress.service import EgressService
from execserver.settings import Settings

QUIET_S = 1.0
ANSWER_S = 20.0
PUBLIC = "93.184.216.34"
HELLO = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


class Names:
    """Answers for names, one list of addresses after the other; the last one stays."""

    def __init__(self, **answers: Sequence[Sequence[str]]) -> None:
        self._answers = {name.replace("_", "."): list(lists) for name, lists in answers.items()}
        self.asked: list[str] = []

    def addresses(self, host: str, port: int) -> list[Address]:
        """Return where a name leads this time.  Raises OSError for an unknown one."""
        self.asked.append(host)
        if host not in self._answers:
            raise OSError(-2, "Name or service not known")
        lists = self._answers[host]
        found = lists.pop(0) if len(lists) > 1 else lists[0]
        return [_place(address, port) for address in found]


def _place(address: str, port: int) -> Address:
    return (socket.AF_INET6 if ":" in address else socket.AF_INET), (address, port)


def rules(
    *allowed: str, denied: Sequence[str] = (), mode: Mode = Mode.FULL, local: bool = False
) -> EgressPolicy:
    """Return a policy of patterns."""
    return EgressPolicy(
        [domain_rules(allowed, denied)], mode=mode, socks_udp=True, allow_local_binding=local, upstream=True
    )


class Scene:
    """A proxy that serves this process, and what it decided."""

    def __init__(self, proxy: EgressProxy, service: EgressService, names: Names) -> None:
        self.proxy = proxy
        self.service = service
        self.names = names
        self.records: list[DecisionRecord] = []

    @property
    def reasons(self) -> list[str]:
        """The reasons of all decisions."""
        return [record.verdict.reason for record in self.records]

    def connection(self, *, socks: bool = False) -> socket.socket:
        """Return a connection to the proxy."""
        port = self.proxy.socks_port if socks else self.proxy.http_port
        sock = socket.create_connection(("127.0.0.1", port))
        sock.settimeout(ANSWER_S)
        return sock

    def say(self, data: bytes, *, socks: bool = False) -> bytes:
        """Send bytes; return what comes back until the end or a silence."""
        with self.connection(socks=socks) as sock:
            sock.sendall(data)
            return heard(sock)

    def status(self, data: bytes) -> int:
        """Send a request; return the status of the answer."""
        with self.connection() as sock:
            sock.sendall(data)
            return int(sock.recv(4096).split(b" ")[1])


def heard(sock: socket.socket, most: int = 1 << 20) -> bytes:
    """Return what comes until the end, a silence after the first bytes, or a limit."""
    data = b""
    try:
        while len(data) < most and (more := sock.recv(65536)):
            data += more
            sock.settimeout(QUIET_S)
    except OSError:
        pass
    return data


@contextmanager
def scene(
    policy: EgressPolicy,
    names: Names | None = None,
    ask: Ask | None = None,
    environ: dict[bytes, bytes] | None = None,
    own: tuple[str, int] | None = None,
    settings: Settings | None = None,
) -> Iterator[Scene]:
    """Serve this process with a proxy."""
    service = EgressService(settings or Settings(), environ or {}, own)
    names = names or Names()
    service.connector = cast(SocketConnector, names)
    found: list[DecisionRecord] = []
    proxy = EgressProxy(policy, service, found.append, ask)
    proxy.listen()
    proxy.leader = os.getpid()
    proxy.start()
    made = Scene(proxy, service, names)
    made.records = found
    try:
        yield made
    finally:
        proxy.close()
        gevent.sleep(0.01)
        service.peers.close()


class Upstream:
    """A server that notes what it is sent, and answers each connection with the same bytes."""

    def __init__(self, sock: socket.socket, answer: bytes | Callable[[socket.socket], None]) -> None:
        self._sock = sock
        self._answer = answer
        self.port: int = sock.getsockname()[1]
        self.place = f"127.0.0.1:{self.port}"
        self.received: list[bytes] = []
        self.greenlets: list[gevent.Greenlet[..., None]] = [gevent.Greenlet.spawn(self._accept)]

    def _accept(self) -> None:
        while True:
            sock, _ = self._sock.accept()
            self.greenlets.append(gevent.Greenlet.spawn(self._serve, sock))

    def _serve(self, sock: socket.socket) -> None:
        with sock:
            if callable(self._answer):
                self._answer(sock)
                return
            index = len(self.received)
            self.received.append(b"")
            while data := sock.recv(65536):
                self.received[index] += data
                if b"\r\n\r\n" in self.received[index]:
                    sock.sendall(self._answer)
                    if not self._answer.endswith(b"hi"):
                        return


@contextmanager
def upstream(answer: bytes | Callable[[socket.socket], None] = HELLO) -> Iterator[Upstream]:
    """Serve on loopback."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(64)
        server = Upstream(sock, answer)
        try:
            yield server
        finally:
            gevent.killall(server.greenlets)


def get(place: str, *fields: str, path: str = "/", method: str = "GET") -> bytes:
    """Return a plain request."""
    lines = (f"{method} http://{place}{path} HTTP/1.1", f"Host: {place}", *fields, "", "")
    return "\r\n".join(lines).encode("latin-1")


def tunnel(place: str) -> bytes:
    """Return a CONNECT."""
    return f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode("latin-1")


def socks_name(name: bytes, port: int = 443, command: int = 1) -> bytes:
    """Return a greeting and a request for a name."""
    return b"\x05\x01\x00" + bytes((5, command, 0, 3, len(name))) + name + port.to_bytes(2)
