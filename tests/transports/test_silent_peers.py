from __future__ import annotations

import socket
from collections.abc import Iterator

import gevent
import pytest

from execserver.transports.silent_peers import SilentPeers
from tests.support.greenlets import turns
from tests.support.waiting import wait_until

Pair = tuple[socket.socket, socket.socket]


class Waiting:
    """What was called back, in order."""

    def __init__(self, limit_s: float) -> None:
        self.calls: list[object] = []
        self.peers = SilentPeers(limit_s, self.calls.append)

    def wait(self, sock: socket.socket) -> None:
        self.peers.wait(sock, lambda: self.calls.append("came"))


@pytest.fixture
def other_pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_what_a_peer_sends_is_told_once(pair: Pair) -> None:
    waiting = Waiting(60)
    waiting.wait(pair[0])
    turns()
    assert waiting.calls == []
    for _ in range(2):
        pair[1].sendall(b"x")
        turns()
    assert waiting.calls == ["came"]
    assert pair[0].recv(10) == b"xx"


def test_the_end_of_a_peer_is_told(pair: Pair) -> None:
    waiting = Waiting(60)
    waiting.wait(pair[0])
    pair[1].shutdown(socket.SHUT_WR)
    turns()
    assert waiting.calls == ["came"]


def test_a_peer_that_stays_silent_is_dropped_once(pair: Pair, other_pair: Pair) -> None:
    waiting = Waiting(0.01)
    waiting.wait(pair[0])
    waiting.wait(other_pair[0])
    wait_until(lambda: len(waiting.calls) == 2, pause=gevent.sleep)
    pair[1].sendall(b"too late")
    turns()
    assert waiting.calls == [pair[0], other_pair[0]]


def test_each_wait_has_its_own_time(pair: Pair) -> None:
    waiting = Waiting(0.01)
    waiting.wait(pair[0])
    pair[1].sendall(b"x")
    turns()
    pair[0].recv(1)
    waiting.wait(pair[0])
    wait_until(lambda: len(waiting.calls) == 2, pause=gevent.sleep)
    assert waiting.calls == ["came", pair[0]]
