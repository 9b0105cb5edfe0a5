"""What a connection answers in the event loop: the same as in its greenlet, in the same order and bounds."""

from __future__ import annotations

import json
import random
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from execserver.core.file_handles import FileHandles
from execserver.handlers.context import Call, ConnectionContext
from execserver.handlers.replies import Result
from execserver.services.http.service import HttpStreams
from execserver.transports import inbox as inbox_module
from execserver.transports.connection import Connection
from execserver.transports.inbox import REPLY_BYTES
from tests.handlers.asking import Server
from tests.services.fakes import FakeSpawner
from tests.support.greenlets import turns
from tests.transports.scene import FakeTransport, Gate, Play, at_once, ids, result
from tests.transports.wires import take


def test_what_never_waits_needs_no_greenlet(play: Play) -> None:
    one = play(echo=at_once(result))
    one.ask("echo", 1, "echo")
    one.call.connection.rules.initialize_succeeded()
    one.receive(b'{"method":"initialized"}')
    assert one.answers() == [{"id": 1, "result": 1}, {"id": 2, "result": None}]
    assert one.connection._worker is None
    one.end()
    assert one.over.is_set()
    assert one.ends == ["detach", "context closed"]


def test_answers_to_what_came_together_leave_together(play: Play) -> None:
    one = play(echo=at_once(result))
    writes: list[int] = []
    one.outbox._on_written = lambda: writes.append(one.outbox.queued)
    one.receive(*(b'{"id":%d,"method":"echo"}' % number for number in (1, 2, 3)))
    assert len(writes) == 1
    one.receive(b'{"id":4,"method":"echo"}')
    assert len(writes) == 2
    assert ids(one.answers()) == [1, 2, 3, 4]
    turns()
    assert len(writes) == 2


def test_only_a_request_that_comes_alone_keeps_the_loop_awake_for_the_next(play: Play) -> None:
    gate = Gate()
    one = play(echo=at_once(result), block=gate.wait)
    one.ask("echo")
    assert one.call.handled_alone == 1
    one.ask("echo", None, "echo")
    assert one.call.handled_alone == 1
    one.ask("block")
    assert one.call.handled_alone == 1
    gate.let_go()
    assert ids(one.answers()) == [1, 2, 3, 4]


def test_it_waits_for_what_came_before(play: Play) -> None:
    gate = Gate()
    one = play(echo=at_once(result), block=gate.wait)
    one.ask("echo", None, "block", "echo")
    one.ask("echo")
    assert ids(one.answers()) == [1]
    gate.let_go()
    assert ids(one.answers()) == [2, 3, 4]
    one.ask("echo")
    assert ids(one.answers()) == [5]


def test_after_a_while_others_have_their_turn(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "_AT_ONCE", 3)
    order: list[object] = []

    def note(_params: object) -> Result:
        order.append("request")
        return result()

    one = play(note=at_once(note))
    gevent.get_hub().loop.run_callback(lambda: gevent.spawn(order.append, "other"))
    one.ask("note", None, *["note"] * 9)
    assert len(order) == 11
    assert order.index("other") <= 3


def test_it_stops_while_the_client_does_not_read(play: Play) -> None:
    handled: list[object] = []

    def large(params: object) -> Result:
        handled.append(params)
        return result("x" * 300_000)

    one = play(large=at_once(large))
    one.ask("large", None, *["large"] * 19)
    assert 4 <= len(handled) < 10
    assert one.outbox.queued < REPLY_BYTES + 700_000
    assert len(one.wait_for(20)) == 20


def test_what_came_before_the_end_is_handled_though_the_end_is_noticed_meanwhile(play: Play) -> None:
    handled: list[object] = []

    def leave(_params: object) -> Result:
        one.connection.ended()  # as when a write fails
        return result()

    def note(params: object) -> Result:
        handled.append(params)
        return result()

    one = play(leave=at_once(leave), note=at_once(note))
    one.ask("leave", None, "note")
    assert handled == [None]
    assert one.finished()
    assert one.ends == ["detach", "context closed"]


def test_what_arrives_meanwhile_comes_behind(play: Play) -> None:
    def more(_params: object) -> Result:
        one.connection.receive([b'{"id":"last","method":"echo"}'])
        return result()

    one = play(more=at_once(more), echo=at_once(result))
    one.ask("more", None, "echo")
    assert ids(one.answers()) == [1, 2, "last"]


def test_a_failure_of_an_answer_is_an_error_and_of_the_connection_its_end(
    play: Play, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_params: object) -> Result:
        raise KeyError("x")

    one, other = play(fail=at_once(fail)), play(echo=at_once(result))
    one.ask("fail")
    assert [answer["error"]["code"] for answer in one.answers()] == [-32603]
    monkeypatch.setattr(one.outbox, "send", fail)
    one.ask("fail")
    assert one.finished()
    assert one.events == ["close 1011 internal error"]
    assert caplog.records[-1].getMessage() == "a connection failed"
    other.ask("echo")
    assert ids(other.answers()) == [1]


class Served:
    """A connection with the real handlers; without `quick` its greenlet handles everything."""

    def __init__(self, server: Server, *, quick: bool) -> None:
        ours, self.peer = socket.socketpair()
        for sock in (ours, self.peer):
            sock.setblocking(False)
        self._ours = ours
        self.transport = FakeTransport(ours)
        outbox = self.transport.outbox
        context = ConnectionContext(outbox, HttpStreams(server.http, outbox), FileHandles(lambda _: None))
        self.connection = Connection(self.transport, Call(context, server.services))
        if not quick:
            self.connection._inbox.let_go()
        self._answers = b""

    def told(self, messages: list[bytes]) -> list[bytes]:
        """Let messages arrive together; return the answers, without the ids of sessions."""
        gevent.get_hub().loop.run_callback(self.connection.receive, messages)
        turns()
        self._answers += take(self.peer)
        *answers, self._answers = self._answers.split(b"\n")
        return [re.sub(rb'"sessionId":"[^"]*"', b"", answer) for answer in answers]

    def close(self) -> None:
        gevent.get_hub().loop.run_callback(self.connection.ended)
        turns()
        self.transport.outbox.close()
        self._ours.close()
        self.peer.close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(FakeSpawner())
    yield made
    made.close()


SANDBOX = {"permissions": {"type": "disabled"}, "windowsSandboxLevel": "disabled"}


def random_message(chance: random.Random, folder: Path) -> bytes:
    """Return a message that a client may send, right or wrong."""
    path = chance.choice([folder.as_uri(), f"{folder}/missing", "file:///C:/x", "relative", "/dev/null"])
    process = {"processId": chance.choice(["p", ""]), "chunk": chance.choice(["eA==", "=", "eB=="])}
    method, params = chance.choice(
        [
            *[("environment/info", chance.choice([{}, None, 7])), ("environment/status", {})],
            *[("fs/getMetadata", {"path": path}), ("fs/getMetadata", {"path": path, "sandbox": SANDBOX})],
            ("fs/getMetadata", {"path": path, "followSymlinks": chance.choice([True, False, "x"])}),
            *[("process/write", process), ("process/write", {**process, "writeId": ""})],
            *[("process/read", process), ("process/read", {**process, "waitMs": -1})],
            *[("process/resize", {**process, "rows": 2, "cols": 0}), ("process/closeStdin", process)],
            *[("process/start", process), ("fs/canonicalize", {"path": path}), ("no/such", {})],
            ("initialize", {"clientName": chance.choice(["x", None])}),
            ("initialize", {"clientName": "x", "resumeSessionId": chance.choice(["", "unknown"])}),
        ]
    )
    message = {"id": chance.choice([1, "two", -(2**63)]), "method": method, "params": params}
    if chance.random() < 0.01:
        message["id"] = chance.choice([2**63, 1.5, None])
    if chance.random() < 0.01:
        message = chance.choice([{"method": "initialized"}, {"id": 1, "result": {}}, {"method": method}])
    text = json.dumps(message).encode()
    if chance.random() < 0.05:
        cut = chance.randrange(len(text))
        text = text[:cut] + chance.choice([b"", b"\xff", b"[" * 200]) + text[cut + 1 :]
    return text


def test_it_is_what_the_greenlet_answers(server: Server, tmp_path: Path) -> None:
    """10,000 messages, right and wrong, each to a connection of either kind."""
    chance = random.Random(7)
    greeting = [b'{"id":0,"method":"initialize","params":{"clientName":"x"}}', b'{"method":"initialized"}']
    pair: list[Served] = []
    told = seen = 0
    while told < 10_000:
        if not pair:
            pair = [Served(server, quick=True), Served(server, quick=False)]
            messages = greeting if chance.random() < 0.8 else []
        else:
            messages = [random_message(chance, tmp_path) for _ in range(chance.randrange(1, 30))]
        quick, slow = (one.told(list(messages)) for one in pair)
        assert quick == slow
        assert pair[0].transport.events == pair[1].transport.events
        told += len(messages)
        seen += len(quick)
        if pair[0].transport.events:
            for one in pair:
                one.close()
            pair = []
    for one in pair:
        one.close()
    assert seen > 5000
