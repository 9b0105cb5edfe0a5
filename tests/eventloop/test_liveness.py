from __future__ import annotations

import socket
import struct

import gevent
import pytest

from execserver.eventloop import liveness
from execserver.eventloop.liveness import LivenessSweep, TcpInfo, set_user_timeout
from tests.support.waiting import wait_until
from tests.transports.wires import fill, take, tcp_connection

Pair = tuple[socket.socket, socket.socket]
CLOSED_WINDOW = TcpInfo(probes=0, unacked=0, not_sent=1, silent_s=0.0)
UNANSWERED = TcpInfo(probes=2, unacked=0, not_sent=1, silent_s=15.0)
IN_FLIGHT = TcpInfo(probes=0, unacked=3, not_sent=1, silent_s=0.0)
SETTLED = TcpInfo(probes=0, unacked=0, not_sent=0, silent_s=0.0)


def packed(info: TcpInfo, size: int = 232) -> bytes:
    """Return the kernel's structure with these values in it."""
    raw = bytearray(b"\xee" * size)
    raw[3] = info.probes
    struct.pack_into("I", raw, 24, info.unacked)
    struct.pack_into("I", raw, 56, round(info.silent_s * 1000))
    struct.pack_into("I", raw, 144, info.not_sent)
    return bytes(raw)


@pytest.mark.parametrize("info", [CLOSED_WINDOW, UNANSWERED, IN_FLIGHT, SETTLED])
def test_the_kernels_structure_is_read(info: TcpInfo) -> None:
    assert TcpInfo.parse(packed(info)) == info
    assert TcpInfo.parse(packed(info, 148)) == info


def test_a_structure_that_is_too_short_tells_nothing() -> None:
    assert TcpInfo.parse(packed(UNANSWERED)[:147]) == SETTLED
    assert TcpInfo.parse(b"") == SETTLED


def test_the_kernel_tells_of_a_real_connection(tcp_pair: Pair) -> None:
    raw = tcp_pair[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 148)
    info = TcpInfo.parse(raw)
    assert info._replace(silent_s=0.0) == SETTLED
    assert info.silent_s < 60


@pytest.mark.parametrize(
    ("info", "window_closed", "settled"),
    [
        (CLOSED_WINDOW, True, False),
        (IN_FLIGHT, False, False),
        (SETTLED, False, True),
        (TcpInfo(0, 1, 0, 0.0), False, False),
    ],
)
def test_what_an_observation_means(info: TcpInfo, window_closed: bool, settled: bool) -> None:
    assert (info.window_closed, info.settled) == (window_closed, settled)


def test_a_peer_that_answers_probes_is_kept_however_long_it_does_not_read() -> None:
    assert not CLOSED_WINDOW.is_gone(15.0)
    one_on_its_way = CLOSED_WINDOW._replace(probes=1, silent_s=120.0)
    assert not one_on_its_way.is_gone(15.0)


def test_a_peer_that_answers_no_probe_is_given_up_after_the_timeout() -> None:
    assert not UNANSWERED._replace(silent_s=14.9).is_gone(15.0)
    assert UNANSWERED.is_gone(15.0)


@pytest.mark.parametrize("info", [IN_FLIGHT, SETTLED])
def test_without_a_closed_window_the_kernel_decides(info: TcpInfo) -> None:
    assert not info._replace(probes=9, silent_s=1000.0).is_gone(15.0)


class FakeSocket:
    """A fake: shows what a test says the kernel knows, and remembers the options that were set."""

    def __init__(self, info: TcpInfo) -> None:
        self.info = info
        self.looks = 0
        self.user_timeouts: list[int] = []

    def getsockopt(self, _level: int, option: int, size: int) -> bytes:
        assert option == socket.TCP_INFO
        self.looks += 1
        return packed(self.info)[:size]

    def setsockopt(self, _level: int, option: int, value: int) -> None:
        assert option == socket.TCP_USER_TIMEOUT
        self.user_timeouts.append(value)


class FakePeer:
    """A fake connection over a fake socket."""

    def __init__(self, info: TcpInfo) -> None:
        self.fake = FakeSocket(info)
        self.gone = 0

    @property
    def sock(self) -> socket.socket:
        return self.fake  # type: ignore[return-value]

    def give_up(self) -> None:
        self.gone += 1


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sweeps follow each other at once."""
    monkeypatch.setattr(liveness, "SWEEP_S", 0.001)


def sweeps(peer: FakePeer, count: int) -> None:
    """Wait for some more looks at a peer."""
    reached = peer.fake.looks + count
    wait_until(lambda: peer.fake.looks >= reached, pause=gevent.sleep)


@pytest.mark.usefixtures("quick")
def test_a_dead_peer_is_given_up_once_and_looked_at_no_more() -> None:
    sweep, dead, alive = LivenessSweep(0.01), FakePeer(UNANSWERED), FakePeer(CLOSED_WINDOW)
    sweep.written(dead)
    sweep.written(alive)
    sweep.written(dead)
    wait_until(lambda: dead.gone, pause=gevent.sleep)
    looks = dead.fake.looks
    sweeps(alive, 3)
    assert (dead.gone, dead.fake.looks, alive.gone) == (1, looks, 0)
    sweep.forget(alive)


@pytest.mark.usefixtures("quick")
def test_nothing_runs_once_everything_is_acknowledged() -> None:
    sweep, peer, other = LivenessSweep(15.0), FakePeer(IN_FLIGHT), FakePeer(IN_FLIGHT)
    sweep.written(peer)
    sweeps(peer, 2)
    peer.fake.info = SETTLED
    sweeps(peer, 1)
    sweep.written(other)
    sweeps(other, 3)
    sweep.forget(other)
    looks = other.fake.looks
    peer.fake.info = IN_FLIGHT
    settled_looks = peer.fake.looks
    gevent.sleep(0.01)
    assert (peer.fake.looks, other.fake.looks) == (settled_looks, looks)
    sweep.written(peer)
    sweeps(peer, 2)
    sweep.forget(peer)


@pytest.mark.usefixtures("quick")
def test_the_kernels_timeout_is_lifted_while_the_window_is_closed() -> None:
    sweep, peer = LivenessSweep(15.0), FakePeer(IN_FLIGHT)
    sweep.written(peer)
    sweeps(peer, 2)
    assert peer.fake.user_timeouts == []
    peer.fake.info = CLOSED_WINDOW
    sweeps(peer, 3)
    assert peer.fake.user_timeouts == [0]
    peer.fake.info = IN_FLIGHT
    sweeps(peer, 3)
    assert peer.fake.user_timeouts == [0, 15_000]
    peer.fake.info = CLOSED_WINDOW
    sweeps(peer, 2)
    peer.fake.info = SETTLED
    wait_until(lambda: len(peer.fake.user_timeouts) == 4, pause=gevent.sleep)
    assert peer.fake.user_timeouts == [0, 15_000, 0, 15_000]
    sweep.forget(peer)


class RealPeer:
    """A connection over a real socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.gone = 0

    def give_up(self) -> None:
        self.gone += 1

    @property
    def user_timeout(self) -> int:
        return self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)


@pytest.mark.usefixtures("quick")
def test_a_real_peer_that_does_not_read_is_kept() -> None:
    with tcp_connection(receive_bytes=16 * 1024) as (ours, theirs):
        set_user_timeout(ours, 15.0)
        sweep, peer = LivenessSweep(15.0), RealPeer(ours)
        assert peer.user_timeout == 15_000
        sent = fill(ours)
        sweep.written(peer)
        wait_until(lambda: peer.user_timeout == 0, pause=gevent.sleep)
        received = 0

        def all_read() -> bool:
            nonlocal received
            received += len(take(theirs))
            return received == sent

        wait_until(all_read, pause=gevent.sleep)
        wait_until(lambda: peer.user_timeout == 15_000, pause=gevent.sleep)
        assert peer.gone == 0
        sweep.forget(peer)


def test_a_peer_that_is_taken_over_is_looked_at_at_once(tcp_pair: Pair) -> None:
    """The program before may have lifted the timeout, or may not have come to that."""
    sender = _Peer(tcp_pair[0])
    set_user_timeout(tcp_pair[0], 16.0)
    fill(tcp_pair[0])
    wait_until(lambda: _info(tcp_pair[0]).window_closed, 20)
    sweep = LivenessSweep(16.0)
    try:
        sweep.taken_over(sender)
        assert _timeout_ms(tcp_pair[0]) == 0
        take(tcp_pair[1])
        wait_until(lambda: not _info(tcp_pair[0]).window_closed, 20)
        sweep.taken_over(sender)
        assert _timeout_ms(tcp_pair[0]) == 16_000
    finally:
        sweep.forget(sender)  # it looks at its peers until they are settled, also after the end of a test


class _Peer:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def give_up(self) -> None:
        """It is not gone."""
        raise AssertionError


def _info(sock: socket.socket) -> TcpInfo:
    return TcpInfo.parse(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 148))


def _timeout_ms(sock: socket.socket) -> int:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
