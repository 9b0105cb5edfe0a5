"""Whoever answers in the engine's place, or has it hold what no relay wrote: each gets a typed refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import cast

import gevent
import pytest
from gevent import socket

from execserver.relay.cluster.node import ClusterNode
from execserver.relay.cluster.presence import NodeRecord, NodeState
from execserver.relay.engine import steps, subscription
from execserver.relay.engine.address import Credentials, EngineAddress
from execserver.relay.engine.client import Engine, EngineRefused
from execserver.relay.engine.line import Dialer, Line, SignInRefused
from execserver.relay.engine.resp import Decoder, Failure, Reply, encode
from execserver.relay.engine.subscription import Subscription
from execserver.relay.engine.tokens import EngineTokens
from execserver.relay.errors import EngineSilent
from execserver.relay.limits import Limits
from execserver.relay.rendezvous import Rendezvous
from execserver.relay.tokens import HARNESS, new_token
from tests.relay.engine.scripted import ScriptedEngine, until

LONG = 20_000  # reads without a pause


@contextmanager
def server_of(answer: Callable[[Reply], bytes]) -> Iterator[ScriptedEngine]:
    server = ScriptedEngine(answer)
    try:
        yield server
    finally:
        server.close()
        gevent.sleep(0.01)


@contextmanager
def engine_of(answer: Callable[[Reply], bytes]) -> Iterator[Engine]:
    with server_of(answer) as server:
        engine = Engine(server.dialer(), (), lambda result: None)
        engine.start()
        try:
            yield engine
        finally:
            engine.close()


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("127.0.0.1", "0"),
        ("127.0.0.1", "65536"),
        ("127.0.0.1", "9" * 5000),
        ("127.0.0.1", "²"),
        ("127.0.0.1", "+1"),
        ("", "6379"),  # would be this machine
        (".example", "6379"),
        ("a\0b", "6379"),
        ("a b", "6379"),
        ("bücher.example", "6379"),
        ("a" * 254, "6379"),
    ],
)
def test_a_sentinel_that_names_no_place_knows_no_primary(host: str, port: str) -> None:
    told = encode((host, port))  # a command has the form of a reply
    with server_of(lambda command: told) as server:
        dialer = Dialer(EngineAddress(False, server.dialer().address.hosts, "main"), Credentials(), {})
        with pytest.raises(EngineSilent, match="knows its primary"):
            dialer.dial()


@pytest.mark.parametrize(
    "moment",
    [("²", "0"), ("9" * 5000, "0"), ("9" * 400, "0"), ("1", "٣"), ("1", "-1"), ("1",), ("1", "1", "1")],
)
def test_a_time_that_is_none_is_refused(moment: tuple[str, ...]) -> None:
    with engine_of(lambda command: encode(moment)) as engine, pytest.raises(EngineRefused, match="the time"):
        steps.time_of(engine)


def test_only_names_of_nodes_are_taken_for_some() -> None:
    def answer(command: Reply) -> bytes:
        assert isinstance(command, list)
        return {
            b"TIME": encode(("1700000000", "1")),
            b"ZREVRANGE": encode(["n1", "a b", "\x1b[2J", *(f"n{number}" for number in range(2, 1000))]),
        }.get(cast(bytes, command[0]), b"$4\r\nheld\r\n")

    with engine_of(answer) as engine:
        names = steps.beat(engine, "n1", NodeRecord("0" * 16, NodeState.UP), 3.0, ()).names
        assert names == ("n1", *(f"n{number}" for number in range(2, steps.MAX_NODES - 1)))


def test_a_token_with_other_fields_is_an_error_and_no_refusal() -> None:
    with engine_of(lambda command: encode(("box",))) as engine, pytest.raises(EngineRefused, match="unread"):
        EngineTokens(engine).find(new_token("box", HARNESS)[1])


def test_a_word_that_cannot_be_sent_moves_no_reply_to_another_call() -> None:
    def answer(command: Reply) -> bytes:
        assert isinstance(command, list)
        return encode(("GET", command[1] if isinstance(command[1], bytes) else ""))

    with engine_of(answer) as engine:
        with pytest.raises(UnicodeEncodeError):
            engine.call(("GET", "first"), ("GET", "\ud800"))
        assert engine.waiting == 0
        assert engine.call(("GET", "second")) == [[b"GET", b"second"]]


def test_a_password_that_the_engine_repeats_is_not_told() -> None:
    told = b"-ERR unknown command 'AUTH', with args beginning with: 'relay' 'secret-of-many-char\r\n"
    with server_of(lambda command: told) as server:
        credentials = Credentials("relay", "secret-of-many-characters")
        with pytest.raises(SignInRefused, match="refuses the credentials") as refused:
            Dialer(server.dialer().address, credentials, {}).dial()
        assert "secret" not in str(refused.value)


def test_an_error_is_a_short_text_without_control_characters() -> None:
    decoder = Decoder()
    long, ugly = decoder.feed(b"-ERR " + b"x" * 2000 + b"\r\n-ERR \x1b[2J\nforged \xff\r\n")
    assert isinstance(long, Failure)
    assert len(long.text) == 512
    assert ugly == Failure("ERR ?[2J?forged \ufffd")


class Ready:
    """A socket that never makes anybody wait, until it was read very often."""

    def __init__(self, data: bytes) -> None:
        self.reads = 0
        self._data = data

    def recv(self, most: int) -> bytes:
        self.reads += 1
        return self._data if self.reads < LONG else b""

    def sendall(self, data: bytes) -> None:
        """Take anything."""

    def close(self) -> None:
        """Do nothing."""


class OneLine:
    """Connects to a socket that is there already."""

    def __init__(self, sock: object) -> None:
        self._sock = sock

    def dial(self) -> Line:
        """Return a line over it."""
        return Line(cast(socket.socket, self._sock))


def subscription_on(sock: object) -> Subscription:
    dialer = cast(Dialer, OneLine(sock))
    return Subscription(dialer, ("node:n1",), lambda channel, line: None, lambda: None)


def test_messages_without_a_pause_leave_others_their_turn() -> None:
    source = Ready(encode(("message", "node:n1", "x")) * 10)
    listening = gevent.Greenlet.spawn(subscription_on(source)._run)
    gevent.sleep(0.002)
    assert 0 < source.reads < LONG
    listening.kill()


def test_an_engine_that_reads_nothing_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription, "_SILENT_S", 0.2)
    near, far = socket.socketpair()
    made = subscription_on(near)
    made._line = Line(near)
    near.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            near.send(bytes(65536))
    near.setblocking(True)
    with made.listening("arr:box"):
        assert near.fileno() == -1  # given up, since nobody knows how much of it was sent
    far.close()


def test_whoever_ends_while_it_begins_to_listen_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = subscription_on(Ready(b""))
    waiting = gevent.Greenlet.spawn(_listen, made)
    monkeypatch.setattr(made, "_send", lambda *words: gevent.sleep(60))
    gevent.sleep(0)
    assert list(made._listened) == ["arr:box"]
    monkeypatch.setattr(made, "_send", lambda *words: None)
    waiting.kill()
    assert made._listened == {}


def _listen(made: Subscription) -> None:
    with made.listening("arr:box"):
        gevent.sleep(60)


def told(*channels: str) -> Callable[[Reply], bytes]:
    """Confirm each subscription, and send a line to some channels then."""

    def answer(command: Reply) -> bytes:
        assert isinstance(command, list)
        confirmed = [
            encode(("subscribe", str(word, "ascii"), 1)) for word in command[1:] if type(word) is bytes
        ]
        return b"".join([*confirmed, *(encode(("message", channel, "line")) for channel in channels)])

    return answer


def test_a_node_that_fails_on_a_line_is_not_alive_until_it_hears_again(
    monkeypatch: pytest.MonkeyPatch, loop_failures: list[str]
) -> None:
    monkeypatch.setattr(subscription, "_PAUSE_S", 0.2)
    heard: list[str] = []

    def hear(channel: str, line: str) -> None:
        heard.append(line)
        if len(heard) == 1:
            raise ValueError("a mistake of ours")

    with server_of(told("node:n1")) as server:
        made = Subscription(server.dialer(), ("node:n1",), hear, lambda: None)
        made.start()
        until(lambda: bool(loop_failures))
        assert not made.is_ready.is_set()
        until(lambda: len(heard) == 2 and made.is_ready.is_set())
        made.close()
    (failure,) = loop_failures
    assert "a mistake of ours" in failure
    loop_failures.clear()


def test_a_line_that_nobody_listens_to_any_more_is_none_of_the_nodes() -> None:
    heard: list[str] = []
    with server_of(told("arr:box", "node:n2", "node:n1")) as server:
        made = Subscription(
            server.dialer(), ("node:n1",), lambda channel, line: heard.append(channel), lambda: None
        )
        made.start()
        until(lambda: "node:n1" in heard)
        made.close()
    assert heard == ["node:n1"]


def test_any_number_of_lines_that_are_no_messages_is_one_line_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine, clock = cast(Engine, SimpleNamespace()), SimpleNamespace(ahead=0.0)
    node = ClusterNode(
        "n1", "", engine, cast(Dialer, None), clock, cast(Rendezvous, SimpleNamespace()), Limits()
    )
    for number in range(1000):
        node._heard("node:n1", f"rubbish {number}")
    assert [record.getMessage() for record in caplog.records] == ["not a message: 'rubbish 0'"]
