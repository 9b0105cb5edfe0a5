"""Messages that are written without the queue: as they would be with it."""

from __future__ import annotations

import random
import socket

from execserver.transports.outbox import Outbox
from tests.support.greenlets import turns
from tests.transports.outboxes import Pair, outbox, outbox_on, packets, read_all
from tests.transports.wires import take, take_packets

__all__ = ["outbox", "packets"]

COUNT = 10_000
SIZES = (1, 20, 125, 126, 1000, 4096, 31_000, 40_000)


class Way:
    """One way of sending to a peer that reads now and then."""

    def __init__(self, tries: bool) -> None:
        self._tries = tries
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._theirs.setblocking(False)
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
        self.writes = 0
        self._outbox = outbox_on(self._ours, on_written=self._written)
        self.read = bytearray()
        self.at_once = 0

    def _written(self) -> None:
        self.writes += 1

    def send(self, message: bytes) -> None:
        if self._tries and self._outbox.try_send(message):
            self.at_once += 1
        else:
            self._outbox.hold()
            self._outbox.send(message)
            self._outbox.release()

    def control(self) -> None:
        self._outbox.send_control(b"ping")

    def peer_reads(self, size: int) -> None:
        self.read += take(self._theirs, size)

    def state(self) -> tuple[int, int, bool]:
        one = self._outbox
        return one._unlooked, one._since_asked, one.may_go_on

    def end(self) -> None:
        self.read += read_all(self._outbox, self._theirs)
        self._outbox.close()
        self._ours.close()
        self._theirs.close()


def test_what_is_sent_at_once_is_sent_as_by_the_queue() -> None:
    rng = random.Random(11)
    quick, usual = Way(tries=True), Way(tries=False)
    for _ in range(COUNT):
        message = rng.randbytes(rng.choice(SIZES[:6] if rng.random() < 0.95 else SIZES))
        for way in (quick, usual):
            way.send(message)
        step, size = rng.random(), rng.choice((100, 5000, 1 << 20))
        for way in (quick, usual):
            if step < 0.1:
                way.control()
            if 0.05 < step < 0.4:
                way.peer_reads(size)
        if step > 0.8:
            turns()
        assert quick.state()[:2] == usual.state()[:2]
    for way in (quick, usual):
        way.end()
    assert quick.read == usual.read
    assert COUNT // 10 < quick.at_once < COUNT * 9 // 10


def test_a_message_at_once_is_behind_all_that_was_queued(packets: Pair) -> None:
    one = outbox_on(packets[0])
    assert one.try_send(b"first")
    assert take_packets(packets[1]) == [b"<first>"]
    one.send(b"second")
    assert not one.try_send(b"third")
    assert take_packets(packets[1]) == []
    turns()
    assert take_packets(packets[1]) == [b"<second>"]


def test_what_the_kernel_leaves_of_it_follows(pair: Pair, outbox: Outbox) -> None:
    pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    message = b"m" * 30_000
    assert outbox.try_send(message)
    assert 0 < outbox.queued < len(message)
    assert not outbox.try_send(b"next")
    outbox.send(b"next")
    assert read_all(outbox, pair[1]) == b"<" + message + b"><next>"


def test_a_peer_that_is_gone_is_met_by_the_queue(pair: Pair) -> None:
    told: list[str] = []
    one = outbox_on(pair[0], lambda: told.append("gone"))
    pair[1].close()
    assert not one.try_send(b"a")
    assert (told, one.queued, one.closed) == ([], 0, False)
    one.send(b"a")
    turns()
    assert told == ["gone"]
    assert not one.try_send(b"b")


def test_nothing_goes_at_once_behind_a_close_or_that_is_large(outbox: Outbox) -> None:
    assert not outbox.try_send(b"l" * 32 * 1024)
    outbox.finish()
    assert not outbox.try_send(b"late")
    assert outbox.queued == 0
