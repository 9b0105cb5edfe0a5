"""Many connections at once: bounded for a process and for all, and nobody goes without for another's."""

from __future__ import annotations

import os
import resource
from contextlib import ExitStack

import gevent
import pytest
from gevent import socket

from execserver.egress.policy import EgressPolicy
from execserver.services.egress import proxy
from execserver.services.egress.places import FEW, Places
from execserver.services.egress.proxy import EgressProxy
from execserver.settings import Settings
from tests.support.egress_scene import Scene, get, rules, scene, tunnel, upstream
from tests.support.waiting import wait_until


class One:
    """Accepts as its places say, and connections come whenever it does."""

    def __init__(self, shared: Places) -> None:
        self.taken = 0
        self._places = shared
        shared.add(self)

    def settle(self) -> None:
        """Take nothing by itself."""

    def fill(self) -> int:
        while self._places.are_free_for(self.taken):
            self._places.take()
            self.taken += 1
        return self.taken


def test_the_last_quarter_is_for_those_with_a_few() -> None:
    shared = Places(100)
    greedy = [One(shared) for _ in range(2)]
    assert [one.fill() for one in greedy] == [75, FEW]
    assert [One(shared).fill() for _ in range(3)] == [FEW, FEW, 1]
    assert not shared.are_free_for(0)
    shared.give_back()
    assert greedy[0].fill() == 75


def test_six_descriptors_are_there_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (600, 600))
    shared = Places(4096)
    assert sum(One(shared).fill() for _ in range(20)) == 100


def test_a_thousand_half_open_tunnels_are_bounded_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "MAX_CONNECTIONS", 512)
    settings = Settings(egress_connections=256)
    policy = rules("127.0.0.1")
    with (
        scene(policy, settings=settings) as here,
        upstream(hold) as held,
        upstream() as server,
        ExitStack() as undo,
    ):
        for _ in range(1000):
            sock = undo.enter_context(here.connection())
            sock.sendall(tunnel(held.place))
            sock.shutdown(socket.SHUT_WR)
            gevent.sleep(0)
        wait_until(lambda: len(here.proxy._connections) == 192, pause=gevent.sleep)
        other = another(here, policy)
        undo.callback(other.proxy.close)
        for _ in range(20):  # of another process
            assert other.status(get(server.place)) == 200
        assert len(here.proxy._connections) == 192
    wait_until(lambda: here.service.places._taken == 0, pause=gevent.sleep)


def hold(sock: socket.socket) -> None:
    """Say nothing until the test is over."""
    gevent.sleep(60)


def another(here: Scene, policy: EgressPolicy) -> Scene:
    """Return the proxy of another process of the same server."""
    made = EgressProxy(policy, here.service, lambda record: None, None)
    made.listen()
    made.leader = os.getpid()
    made.start()
    return Scene(made, here.service, here.names)
