"""Connections here joined to streams of a box: which requests that takes, what waits, what ends what."""

from __future__ import annotations

import base64
import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import gevent
import pytest
from gevent import socket

from execserver.box.ports.passage import SHORT_BYTES, Passage, join
from execserver.client import ExecServerClient
from execserver.client.carriers.websocket_transport import WebSocketTransport
from execserver.client.ports import PortStream
from execserver.eventloop.ends import of_gevent
from execserver.protocol.environment import Extensions
from tests.client.conftest import QUICK
from tests.client.cutting_proxy import CuttingProxy
from tests.client.fake_server import FakeServer, Refusal, Unanswered
from tests.support.greenlets import loop_failures, the_hub_settles, turns
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

__all__ = ["loop_failures", "the_hub_settles"]
pytestmark = pytest.mark.usefixtures("loop_failures")

ANSWER_S = 20.0
MIB = 1024 * 1024


@pytest.fixture(params=[True, False], ids=["at once", "waiting"])
def fake(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    """A server in memory, to which requests go at once, or by greenlets that wait."""
    fake = FakeServer()
    fake.sends_at_once = request.param
    answers: dict[str, Callable[[Any], object]] = {
        "port/open": lambda _: {"portId": "p", "address": {"host": "h", "port": 7}, "windowBytes": MIB},
        "port/data": lambda params: {"received": params["offset"] + len(chunk_of(params))},
        "port/ack": lambda _: {},
        "port/close": lambda _: {},
        "port/resume": lambda _: {"received": 0},
    }
    fake.answers |= answers
    return fake


class Joined:
    """A passage to the server in memory, and the socket at its near end."""

    def __init__(self, fake: FakeServer, client: ExecServerClient) -> None:
        self.fake = fake
        self.ended: list[Passage] = []
        near, self.here = connected()
        self.stream = client.ports.open("h", 7)
        self.passage = Passage(of_gevent(near), self.stream, self.ended.append)
        self.passage.begin()

    def comes(self, offset: int, data: bytes, *, eof: bool = False) -> None:
        """Let the box send bytes."""
        chunk = base64.b64encode(data).decode()
        params = {"portId": self.stream.port_id, "offset": offset, "chunk": chunk, "eof": eof}
        self.fake.current.push("port/bytes", **params)

    def asked(self) -> list[tuple[object, ...]]:
        """Return what the client has asked for since the opening."""
        turns(5)
        sent: list[tuple[object, ...]] = []
        for one in self.fake.requests:
            if one.method == "port/data":
                sent.append((one.params["offset"], chunk_of(one.params), one.params["eof"]))
            elif one.method == "port/close":
                sent.append(("close",))
        return sent


def chunk_of(params: Any) -> bytes:
    return base64.b64decode(params["chunk"])


def connected() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a TCP connection."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        other = socket.create_connection(listener.getsockname(), ANSWER_S)
        return listener.accept()[0], other


@pytest.fixture
def joined(fake: FakeServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Joined]:
    client = ExecServerClient(fake.open_transport, QUICK)
    client.session_id  # noqa: B018  connects
    monkeypatch.setattr(type(client._session), "extensions", Extensions(port_forward="loopback"))
    joined = Joined(fake, client)
    yield joined
    joined.passage.finish()
    joined.here.close()
    turns()
    client.close()


def test_an_exchange_that_the_box_ends_takes_two_requests(joined: Joined) -> None:
    joined.here.sendall(b"ask")
    joined.fake.wait_for("port/data")
    joined.comes(0, b"answer")
    joined.comes(6, b"", eof=True)
    assert joined.here.recv(100) == b"answer"
    assert joined.here.recv(100) == b""
    assert not joined.ended
    joined.here.close()
    joined.fake.wait_for("port/close")
    assert joined.asked() == [(0, b"ask", False), ("close",)]
    assert joined.ended == [joined.passage]


def test_who_ends_first_here_gets_all_that_still_comes(joined: Joined) -> None:
    joined.here.sendall(b"ask")
    joined.fake.wait_for("port/data")
    joined.here.shutdown(socket.SHUT_WR)
    joined.fake.wait_for("port/data", 2)
    joined.comes(0, b"answer")
    assert joined.here.recv(100) == b"answer"
    assert joined.asked() == [(0, b"ask", False), (3, b"", True)]
    joined.comes(6, b"", eof=True)
    assert joined.here.recv(100) == b""
    joined.fake.wait_for("port/close")
    assert joined.ended == [joined.passage]


def test_the_end_waits_for_what_the_box_has_not_taken(joined: Joined) -> None:
    joined.fake.answers["port/data"] = unanswered
    joined.here.sendall(b"slow")
    asked = joined.fake.wait_for("port/data")
    joined.comes(0, b"", eof=True)
    assert joined.here.recv(100) == b""
    joined.here.close()
    assert ("close",) not in joined.asked()
    joined.fake.answers["port/data"] = lambda params: {"received": 4}
    joined.fake.current.reply(asked.call_id, {"received": 4})
    for late in joined.fake.asked("port/data")[1:]:
        joined.fake.current.reply(late.call_id, {"received": 4})
    joined.fake.wait_for("port/close")
    assert joined.asked()[-1] == ("close",)


def unanswered(params: Any) -> object:
    raise Unanswered


def test_what_is_not_read_here_is_not_acknowledged_and_comes_in_order(joined: Joined) -> None:
    block = bytes(range(256)) * 256
    for number in range(64):
        joined.comes(number * len(block), block)
    joined.comes(64 * len(block), b"", eof=True)
    wait_until(lambda: joined.stream.arrived == 64 * len(block), ANSWER_S, pause=gevent.sleep)
    found = b"".join(iter(lambda: joined.here.recv(MIB), b""))
    assert found == block * 64

    def told() -> int:
        return max((one.params["received"] for one in joined.fake.asked("port/ack")), default=0)

    wait_until(lambda: told() > 3 * MIB, ANSWER_S, pause=gevent.sleep)  # of 4, and a window of 1


def test_pieces_that_were_lost_are_sent_again_before_others(joined: Joined) -> None:
    joined.fake.answers["port/data"] = unanswered
    joined.here.sendall(b"one")
    joined.fake.wait_for("port/data")
    joined.fake.answers["port/data"] = lambda params: {"received": 6}
    joined.fake.current.drop()
    joined.fake.wait_for("port/data", 2)
    joined.here.sendall(b"two")
    wait_until(lambda: (3, b"two", False) in joined.asked(), ANSWER_S, pause=gevent.sleep)
    *before, last = joined.asked()
    assert (set(before), last) == ({(0, b"one", False)}, (3, b"two", False))
    joined.comes(0, b"still", eof=True)
    assert joined.here.recv(100) == b"still"


def test_the_end_of_this_side_that_was_lost_is_told_again(joined: Joined) -> None:
    joined.fake.answers["port/data"] = unanswered
    joined.here.shutdown(socket.SHUT_WR)
    joined.fake.wait_for("port/data")
    joined.fake.answers["port/data"] = lambda params: {"received": 0}
    joined.fake.current.drop()
    joined.fake.wait_for("port/data", 2)
    assert set(joined.asked()) == {(0, b"", True)}
    joined.comes(0, b"", eof=True)
    joined.fake.wait_for("port/close")


def test_a_refused_piece_ends_both_sides_at_once_and_here_by_a_reset(joined: Joined) -> None:
    def refuse(params: Any) -> object:
        raise Refusal(-32600, "unknown port")

    joined.fake.answers["port/data"] = refuse
    joined.here.sendall(b"x")
    joined.here.settimeout(ANSWER_S)
    with pytest.raises(ConnectionResetError):  # by an end, who has sent it would take it for received
        joined.here.recv(100)
    joined.fake.wait_for("port/close")
    assert joined.ended == [joined.passage]


def test_a_piece_refused_behind_the_end_of_the_stream_takes_nothing_from_what_has_come(
    joined: Joined,
) -> None:
    def refuse(params: Any) -> object:
        raise Refusal(-32600, "unknown port")

    joined.fake.answers["port/data"] = refuse
    joined.comes(0, b"last")
    joined.fake.current.push("port/closed", portId=joined.stream.port_id, error="reset")
    with suppress(ConnectionError):
        joined.here.sendall(b"x")
    assert joined.here.recv(100) == b"last"
    joined.fake.wait_for("port/close")


def test_a_stream_that_fails_ends_this_side_behind_what_has_come(joined: Joined) -> None:
    joined.comes(0, b"last")
    joined.fake.current.push("port/closed", portId=joined.stream.port_id, error="reset")
    assert joined.here.recv(100) == b"last"
    assert joined.here.recv(100) == b""
    joined.fake.wait_for("port/close")


def test_a_reset_here_ends_the_stream(joined: Joined) -> None:
    joined.here.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    joined.here.close()
    joined.fake.wait_for("port/close")
    joined.comes(0, b"too late")
    assert joined.asked() == [("close",)]


def test_what_comes_for_one_who_has_left_ends_the_stream(joined: Joined) -> None:
    joined.here.shutdown(socket.SHUT_WR)
    joined.fake.wait_for("port/data")
    joined.here.close()
    for offset in itertools.count():
        if joined.fake.asked("port/close"):
            break
        joined.comes(offset, b"x")
        turns()
    assert joined.ended == [joined.passage]


@contextmanager
def through(server: ServerProcess) -> Iterator[tuple[CuttingProxy, ExecServerClient]]:
    with CuttingProxy(server.url) as proxy, ExecServerClient.connect(proxy.url) as client:
        yield proxy, client


def opened(client: ExecServerClient) -> tuple[PortStream, socket.socket]:
    """Return a stream that leads through the box, and its far end."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        stream = client.ports.open("127.0.0.1", listener.getsockname()[1])
        return stream, listener.accept()[0]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("at_once", [True, False])
def test_whatever_goes_through_arrives_whole_and_in_order(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, seed: int, at_once: bool
) -> None:
    """The same plans by the event loop and by greenlets, some with lost connections."""
    if not at_once:
        monkeypatch.setattr(WebSocketTransport, "send_at_once", lambda self, message: False)
    plan = random.Random(seed)
    with through(server) as (proxy, client):
        near, here = connected()
        stream, there = opened(client)
        passing = gevent.spawn(join, of_gevent(near), stream)
        sending, wanted = [], []
        for sender in (here, there):
            sizes = [plan.choice((1, 10, SHORT_BYTES, 100_000)) + plan.randrange(50) for _ in range(30)]
            pieces = [plan.randbytes(size) for size in sizes]
            wanted.append(b"".join(pieces))
            sending.append(gevent.spawn(send, plan, sender, pieces, proxy if seed % 2 else None))
        receiving = [gevent.spawn(to_the_end, sock) for sock in (there, here)]
        assert [each.get(timeout=60) for each in receiving] == wanted
        gevent.joinall(sending, timeout=ANSWER_S, raise_error=True)
        passing.get(timeout=ANSWER_S)
        wait_until(lambda: client.ports.list().streams == (), ANSWER_S, pause=gevent.sleep)
        here.close()
        there.close()


def send(plan: random.Random, sock: socket.socket, pieces: list[bytes], proxy: CuttingProxy | None) -> None:
    for number, piece in enumerate(pieces):
        sock.sendall(piece)
        if plan.random() < 0.5:
            turns()
        if proxy is not None and number % 12 == 11:
            proxy.cut()
    sock.shutdown(socket.SHUT_WR)


def to_the_end(sock: socket.socket) -> bytes:
    return b"".join(iter(lambda: sock.recv(MIB), b""))


def test_little_wakes_no_greenlet(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    spawned: list[object] = []
    with through(server) as (_, client):
        near, here = connected()
        stream, there = opened(client)
        ended: list[Passage] = []
        monkeypatch.setattr(gevent, "spawn", lambda run, *_: spawned.append(run))
        Passage(of_gevent(near), stream, ended.append).begin()
        for sender, receiver in ((here, there), (there, here), (here, there)):
            sender.sendall(b"hello")
            assert receiver.recv(100) == b"hello"
        there.close()
        assert here.recv(100) == b""
        here.close()
        wait_until(lambda: bool(ended), ANSWER_S, pause=gevent.sleep)
        assert spawned == []
        monkeypatch.undo()


def test_who_is_killed_while_it_joins_ends_both(server: ServerProcess) -> None:
    with through(server) as (_, client):
        near, here = connected()
        stream, there = opened(client)
        joining = gevent.spawn(join, of_gevent(near), stream)
        here.sendall(b"x")
        assert there.recv(10) == b"x"
        joining.kill()
        assert (here.recv(10), there.recv(10)) == (b"", b"")
        here.close()
        there.close()
