"""One process of a crowd: scripted executors that register, connect, and come again when they are lost.

    python -m tools.cluster.crowd_process FILE

FILE is JSON: the `place` of a relay or balancer, and the `tokens` of environments.  All register; at the
first SIGUSR1 they connect, at each further one they connect anew, each in the place of its former websocket.
What has become of them is told in lines on stdout, each a JSON object of figures since the start.

Greenlets with a websocket each: thousands of environments cost little.  They know no Noise, since what is
looked at is the way to the relay.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import gevent
from gevent import socket
from gevent.event import AsyncResult, Event
from gevent.pool import Pool

from tools.cluster.cluster import KEY
from tools.cluster.descriptors import own_limit_up_to_hard

_ANSWER_S = 60.0  # of a relay that everybody wants something of, on a machine that is shared
_AT_ONCE = 8  # of a first visit; more would wait at the relay, and with them what a balancer asks it
_PAUSE_S = (0.05, 0.25)  # as our executor's first
_TELL_S = 0.05
_PING, _PONG = 0x89, 0x8A
_MASKED = 0x80
Done = TypeVar("Done")


@dataclass(slots=True)
class _Member:
    """One environment's executor."""

    name: str
    url: str = ""
    successor: AsyncResult[socket.socket] | None = None  # takes the place of its websocket


class Members:
    """The executors of one process; `figures` says how they fare."""

    def __init__(self, place: str, tokens: Mapping[str, str]) -> None:
        host, _, port = place.rpartition(":")
        self.figures: Counter[str] = Counter()
        self._place = host, int(port)
        self._tokens = tokens
        self._members = [_Member(name) for name in tokens]
        self._go = Event()

    def live(self) -> None:
        """Do all of it, without an end."""
        is_first = True
        self._each(self._register)
        while True:
            self._go.wait()
            self._go.clear()
            self._each(self._begin if is_first else self._succeed)
            is_first = False

    def go_on(self) -> None:
        """Begin what comes next."""
        self._go.set()

    def _each(self, act: Callable[[_Member], object]) -> None:
        pool = Pool(_AT_ONCE)
        for member in self._members:
            pool.spawn(self._until_done, act, member)
        pool.join()

    def _until_done(self, act: Callable[[_Member], Done], member: _Member) -> Done:
        while True:
            try:
                return act(member)
            except OSError:
                self.figures["failed"] += 1
                gevent.sleep(random.uniform(*_PAUSE_S))

    def _register(self, member: _Member) -> None:
        body = json.dumps({"security_profile": "noise_hybrid_ik_v1", "executor_public_key": KEY})
        head = (
            f"POST /cloud/environment/{member.name}/register HTTP/1.1\r\nHost: relay\r\nConnection: close\r\n"
            f"Authorization: Bearer {self._tokens[member.name]}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        with socket.create_connection(self._place, _ANSWER_S) as sock:
            sock.sendall((head + body).encode())
            answer = b""
            while piece := sock.recv(65536):
                answer += piece
        self._must_be(b"200", answer)
        member.url = json.loads(answer.partition(b"\r\n\r\n")[2])["url"]
        self.figures["registered"] += 1

    def _open(self, member: _Member) -> socket.socket:
        parts = urlsplit(member.url)
        sock = socket.create_connection(self._place, _ANSWER_S)
        try:
            sock.sendall(
                f"GET {parts.path}?{parts.query} HTTP/1.1\r\nHost: relay\r\nConnection: Upgrade\r\n"
                "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
            )
            self._must_be(b"101", sock.recv(65536))
        except BaseException:
            sock.close()
            raise
        sock.settimeout(None)
        self.figures["opened"] += 1
        return sock

    def _must_be(self, status: bytes, answer: bytes) -> None:
        """Count another status.  Raises OSError then."""
        found = answer[9:12]
        if found != status:
            self.figures[f"status {found.decode('ascii', 'replace') or 'none'}"] += 1
            raise OSError(f"status {found!r}")

    def _begin(self, member: _Member) -> None:
        gevent.spawn(self._stay, member, self._open(member))

    def _succeed(self, member: _Member) -> None:
        # Known before the relay ends the former one, which may be noticed first.
        if member.successor is None:
            member.successor = AsyncResult()
        member.successor.set(self._open(member))

    def _stay(self, member: _Member, sock: socket.socket) -> None:
        while True:
            self.figures["connected"] += 1
            try:
                with sock:
                    _answer_pings(sock)
            except OSError:
                pass
            self.figures["connected"] -= 1
            if member.successor is not None:
                successor, member.successor = member.successor.get(), None
                assert successor is not None
                sock = successor
            else:
                self.figures["lost"] += 1
                gevent.sleep(random.uniform(*_PAUSE_S))
                sock = self._until_done(self._open, member)


def _answer_pings(sock: socket.socket) -> None:
    """Read until the end; frames here are short ones."""
    buffer = b""
    while piece := sock.recv(4096):
        buffer += piece
        while len(buffer) >= 2 and len(buffer) >= 2 + buffer[1]:
            size = buffer[1]
            if buffer[0] == _PING:
                sock.sendall(bytes((_PONG, _MASKED | size)) + bytes(4) + buffer[2 : 2 + size])
            buffer = buffer[2 + size :]


def main(words: Iterable[str]) -> None:
    """Play a part of a crowd until the parent is gone."""
    (file,) = words
    told, parent = json.loads(Path(file).read_text()), os.getppid()
    own_limit_up_to_hard()
    members = Members(told["place"], told["tokens"])
    gevent.signal_handler(signal.SIGUSR1, members.go_on)
    living = gevent.spawn(members.live)
    said = ""
    while os.getppid() == parent and not living.ready():
        line = json.dumps(members.figures)
        if line != said:
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
            said = line
        gevent.sleep(_TELL_S)
    if living.ready():
        living.get()


if __name__ == "__main__":
    main(sys.argv[1:])
