from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import cast

import gevent
import pytest

from execserver.access.bearer import CapabilityToken
from execserver.eventloop.deadline import at_most
from execserver.settings import Settings
from execserver.transports import upgrade as upgrade_module
from execserver.transports.door import OPEN_DOOR, Door
from execserver.transports.upgrade import Upgraded, upgrade, upgrade_at_once
from tests.support.greenlets import turns
from tests.transports.wires import fill, take, tcp_connection

Pair = tuple[socket.socket, socket.socket]

READY = b"GET /readyz HTTP/1.1\r\n\r\n"
UPGRADE = (
    b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\n"


class Upgrading:
    """An upgrade that runs in a greenlet, and the peer's end of its socket."""

    def __init__(self, pair: Pair, **settings: float) -> None:
        self.peer = pair[1]
        self._greenlet = gevent.spawn(upgrade, pair[0], Settings(**settings))
        turns()

    def send(self, data: bytes) -> bytes:
        """Send bytes and return what comes back."""
        self.peer.sendall(data)
        turns()
        return take(self.peer)

    @property
    def pending(self) -> bool:
        """True while more is waited for."""
        return not self._greenlet.ready()

    def result(self) -> bytes | None:
        """Return the bytes behind the request that upgraded the connection; None if none did."""
        upgraded: Upgraded | None = self._greenlet.get(timeout=20)
        return None if upgraded is None else upgraded.early

    def stop(self) -> None:
        self._greenlet.kill()


@pytest.fixture
def upgrading(pair: Pair) -> Iterator[Upgrading]:
    made = Upgrading(pair)
    yield made
    made.stop()


def test_a_valid_request_upgrades(upgrading: Upgrading) -> None:
    reply = upgrading.send(UPGRADE)
    assert reply.startswith(SWITCHING)
    assert b"\r\nsec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in reply
    assert upgrading.result() == b""


def test_bytes_behind_the_upgrade_are_handed_on(upgrading: Upgrading) -> None:
    upgrading.send(UPGRADE + b"\x81\x80early")
    assert upgrading.result() == b"\x81\x80early"


def test_a_request_may_come_byte_by_byte(upgrading: Upgrading) -> None:
    replies = [upgrading.send(bytes([byte])) for byte in UPGRADE]
    assert b"".join(replies[:-1]) == b""
    assert replies[-1].startswith(SWITCHING)
    assert upgrading.result() == b""


def test_other_requests_are_answered_before(upgrading: Upgrading) -> None:
    assert upgrading.send(READY).startswith(b"HTTP/1.1 200 OK\r\n")
    assert upgrading.send(b"GET /nowhere HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 404 Not Found\r\n")
    assert upgrading.pending
    assert upgrading.send(UPGRADE).startswith(SWITCHING)
    assert upgrading.result() == b""


def test_requests_may_come_together_with_empty_lines_between(upgrading: Upgrading) -> None:
    replies = upgrading.send(b"\r\n" + READY + b"\r\n\r\n" + READY + b"\n" + UPGRADE + b"x")
    assert [line[9:12] for line in replies.split(b"\r\n") if line.startswith(b"HTTP/")] == [
        b"200",
        b"200",
        b"101",
    ]
    assert upgrading.result() == b"x"


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (b"hello\r\n\r\n", b"400"),
        (b"GET /readyz HTTP/1.0\r\n\r\n", b"200"),
        (b"GET /readyz HTTP/1.1\r\nConnection: close\r\n\r\n", b"200"),
    ],
)
def test_some_answers_end_the_connection(upgrading: Upgrading, request_text: bytes, status: bytes) -> None:
    assert upgrading.send(request_text)[9:12] == status
    assert upgrading.result() is None


@pytest.mark.parametrize(
    "head",
    [
        b"GET /readyz HTTP/1.1\nHost: x\n\n",
        b"GET /readyz HTTP/1.1\r\nHost: x\n",
        UPGRADE.replace(b"\r\n", b"\n"),
        UPGRADE.replace(b"\r\n\r\n", b"\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"),
    ],
)
def test_what_has_two_meanings_is_refused_at_once(upgrading: Upgrading, head: bytes) -> None:
    answer = upgrading.send(head + READY)
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n")
    assert answer.count(b"HTTP/1.1") == 1
    assert upgrading.result() is None


@pytest.mark.parametrize("sent", [b"", b"GET / HT", READY])
def test_a_peer_that_leaves_ends_it(upgrading: Upgrading, sent: bytes) -> None:
    upgrading.send(sent)
    upgrading.peer.close()
    assert upgrading.result() is None


def test_a_head_that_is_too_large_is_refused(pair: Pair) -> None:
    upgrading = Upgrading(pair, max_header_bytes=100)
    assert upgrading.send(b"GET / HTTP/1.1\r\nA: " + b"a" * 90)[9:12] == b"431"
    assert upgrading.result() is None


def test_a_whole_head_that_is_too_large_is_refused(pair: Pair) -> None:
    upgrading = Upgrading(pair, max_header_bytes=100)
    assert upgrading.send(b"GET / HTTP/1.1\r\nA: " + b"a" * 90 + b"\r\n\r\n")[9:12] == b"431"
    assert upgrading.result() is None


def test_a_silent_peer_is_given_up(pair: Pair) -> None:
    assert Upgrading(pair, upgrade_timeout_s=0.01).result() is None


def test_a_peer_that_sends_too_slowly_is_given_up(pair: Pair) -> None:
    upgrading = Upgrading(pair, upgrade_timeout_s=0.02)
    while upgrading.pending:
        upgrading.send(b"G")
    assert upgrading.result() is None


def test_each_request_has_its_own_time(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[float] = []

    def note(seconds: float) -> AbstractContextManager[None]:
        times.append(seconds)
        return at_most(seconds)

    monkeypatch.setattr(upgrade_module, "at_most", note)
    upgrading = Upgrading(pair, upgrade_timeout_s=7)
    upgrading.send(READY)
    upgrading.send(READY + b"GET")
    assert len(times) == 3
    assert all(6 < seconds <= 7 for seconds in times)
    upgrading.stop()


def test_a_peer_that_takes_no_answer_is_given_up(pair: Pair) -> None:
    fill(pair[0])
    upgrading = Upgrading(pair)
    pair[1].sendall(READY)
    assert upgrading.result() is None


class FloodingSocket:
    """A fake socket that always has more to read, over the number of a real one that is silent."""

    def __init__(self, real: socket.socket, flood: bytes) -> None:
        self._real = real
        self._flood = flood
        self.received = 0

    def fileno(self) -> int:
        return self._real.fileno()

    def recv(self, _size: int) -> bytes:
        self.received += 1
        return self._flood

    def send(self, data: bytes) -> int:
        return len(data)


def test_a_flood_of_empty_lines_meets_the_time_limit(pair: Pair) -> None:
    flooding = FloodingSocket(pair[0], b"\r\n" * 4096)
    assert upgrade(cast(socket.socket, flooding), Settings(upgrade_timeout_s=0.01)) is None
    assert flooding.received > 1


@pytest.mark.parametrize("flood", [b"\r\n" * 4096, READY])
def test_a_flood_leaves_others_their_turns(pair: Pair, flood: bytes) -> None:
    flooding = FloodingSocket(pair[0], flood)
    greenlet = gevent.spawn(upgrade, cast(socket.socket, flooding), Settings())
    reads = []
    for _ in range(5):
        gevent.sleep(0)
        reads.append(flooding.received)
    greenlet.kill()
    assert reads[0] < reads[-1] < 10


def at_once(pair: Pair, sent: bytes, door: Door = OPEN_DOOR) -> tuple[bytes, Upgraded | bytes | None]:
    """Serve what is here already; return the answer and the result."""
    pair[1].sendall(sent)
    result = upgrade_at_once(pair[0], Settings(max_header_bytes=300), door)
    return take(pair[1]), result


def test_a_whole_request_is_upgraded_at_once(pair: Pair) -> None:
    reply, upgraded = at_once(pair, UPGRADE + b"\x81\x80early")
    assert reply.startswith(SWITCHING)
    assert isinstance(upgraded, Upgraded)
    assert upgraded.early == b"\x81\x80early"


@pytest.mark.parametrize("begun", [b"", b"\r\n", b"GET / HT", UPGRADE[:-1]])
def test_half_a_request_is_left_to_a_greenlet(pair: Pair, begun: bytes) -> None:
    assert at_once(pair, begun) == (b"", begun)


def test_what_follows_another_request_is_left_to_a_greenlet(pair: Pair) -> None:
    reply, left = at_once(pair, READY + UPGRADE)
    assert reply.startswith(b"HTTP/1.1 200 OK\r\n")
    assert left == UPGRADE


def test_a_door_that_may_wait_is_left_to_a_greenlet(pair: Pair) -> None:
    class Slow(CapabilityToken):
        may_wait = True

    assert at_once(pair, UPGRADE, Door(Slow.of("token"))) == (b"", b"")


@pytest.mark.parametrize(("token", "status"), [(b"token", b"101"), (b"other", b"401")])
def test_a_door_that_only_calculates_decides_at_once(pair: Pair, token: bytes, status: bytes) -> None:
    asking = UPGRADE.replace(b"\r\n\r\n", b"\r\nAuthorization: Bearer " + token + b"\r\n\r\n")
    reply, _ = at_once(pair, asking, Door(CapabilityToken.of("token")))
    assert reply.startswith(b"HTTP/1.1 " + status)


def test_a_peer_that_is_gone_already_is_given_up_at_once(pair: Pair) -> None:
    pair[1].shutdown(socket.SHUT_WR)
    assert upgrade_at_once(pair[0], Settings()) is None


def test_a_peer_that_takes_no_answer_is_given_up_at_once(pair: Pair) -> None:
    fill(pair[0])
    pair[1].sendall(UPGRADE)
    assert upgrade_at_once(pair[0], Settings()) is None


def test_both_ways_give_the_same_answers() -> None:
    """Damaged requests, at once and in a greenlet."""
    chance = random.Random(7)
    for _ in range(400):
        sent = _damaged(chance)
        answers = []
        for begin in (upgrade_at_once, lambda *_: b""):
            with tcp_connection() as pair:
                pair[1].sendall(sent)
                pair[1].shutdown(socket.SHUT_WR)
                result = begin(pair[0], Settings(max_header_bytes=300))
                if isinstance(result, bytes):
                    result = upgrade(pair[0], Settings(max_header_bytes=300), received=result)
                answers.append((_without_date(take(pair[1])), result))
        assert answers[0] == answers[1], sent


def _damaged(chance: random.Random) -> bytes:
    parts = [chance.choice((UPGRADE, READY, b"\r\n", UPGRADE[:-2])) for _ in range(chance.randrange(1, 4))]
    data = bytearray(b"".join(parts))
    for _ in range(chance.randrange(3)):
        at = chance.randrange(len(data) + 1)
        data[at : at + chance.randrange(3)] = chance.choice((b"", b"\n", b"\r", b"\0", b" ", b"x" * 200))
    return bytes(data)


def _without_date(reply: bytes) -> list[bytes]:
    return [line for line in reply.split(b"\r\n") if not line.startswith(b"date:")]
