"""One client over two pipes: order, bounds, and every way a conversation can end."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from typing import cast

import gevent
import pytest
from gevent.event import Event
from gevent.os import nb_read, nb_write

from execserver.mcp.elicitation import Ask
from execserver.mcp.lines import BoundedLines
from execserver.mcp.sandbox_state import SandboxState
from execserver.mcp.server import ShellToolServer
from execserver.mcp.tool import ExecParams, ExecResult
from execserver.settings import Settings
from execserver.transports import inbox
from execserver.transports.outbox import HIGH_WATER_BYTES
from execserver.transports.stdio import StdioTransport
from tests.support.greenlets import turns
from tests.support.waiting import wait_until

JsonObject = dict[str, object]
LINE_BYTES = 4096
HELLO = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}\n'
    b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
)


class Scene:
    """A server whose calls wait for their cancellation, or print their state, and a client's pipe ends."""

    def __init__(self) -> None:
        self.stdin_fd, self.typed_fd = os.pipe()
        self.shown_fd, self.stdout_fd = os.pipe()
        for fd in (self.typed_fd, self.shown_fd):
            os.set_blocking(fd, False)
        self.open = {self.stdin_fd, self.typed_fd, self.shown_fd, self.stdout_fd}
        transport = StdioTransport(self.stdin_fd, self.stdout_fd, Settings(), BoundedLines(LINE_BYTES))
        self.server = ShellToolServer(transport, "1", self.run)
        self.transport = transport
        transport.start(self.server)
        self.serving = gevent.spawn(self.server.serve)
        self.started: list[str] = []
        self.ended: list[str] = []
        self._rest = b""

    def run(self, params: ExecParams, state: SandboxState | None, ask: Ask, cancelled: Event) -> ExecResult:
        self.started.append(params.command)
        try:
            if params.command == "state":
                return ExecResult(0, "none" if state is None else state.policy.kind, 0)
            if params.command == "big":
                return ExecResult(0, "x" * 200_000, 0)
            cancelled.wait()
            return ExecResult(0, "", 0)
        finally:
            self.ended.append(params.command)

    def type(self, *lines: bytes) -> None:
        """Send lines."""
        data = memoryview(b"".join(line + b"\n" for line in lines))
        while data:
            data = data[nb_write(self.typed_fd, data[:65536]) :]
        turns()

    def read(self, count: int) -> list[JsonObject]:
        """Return the next messages, decoded."""
        lines: list[bytes] = []
        with gevent.Timeout(20):
            while len(lines) < count:
                if b"\n" in self._rest:
                    line, _, self._rest = self._rest.partition(b"\n")
                    lines.append(line)
                    continue
                piece = nb_read(self.shown_fd, 1 << 20)
                assert piece, "the output ended"
                self._rest += piece
        return [json.loads(line) for line in lines]

    def greet(self) -> None:
        os.write(self.typed_fd, HELLO)
        self.read(1)

    def result(self) -> JsonObject:
        return cast(JsonObject, self.read(1)[0]["result"])

    def close(self, fd: int) -> None:
        if fd in self.open:
            self.open.remove(fd)
            os.close(fd)
        turns()

    def close_all(self) -> None:
        self.server.close(5)
        self.serving.kill()
        self.transport.pause()
        self.transport.outbox.close()
        turns()
        for fd in list(self.open):
            self.close(fd)


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.close_all()


def request(number: object, method: str, params: object = None) -> bytes:
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    return json.dumps(message).encode()


def call(number: object, command: str) -> bytes:
    return request(number, "tools/call", {"name": "shell", "arguments": {"command": command, "workdir": "/"}})


def test_a_conversation_ends_well_with_its_input(scene: Scene) -> None:
    scene.greet()
    scene.type(request(2, "ping"), call(3, "wait"))
    assert scene.read(1) == [{"jsonrpc": "2.0", "id": 2, "result": {}}]
    scene.close(scene.typed_fd)
    assert scene.serving.get(timeout=20) is None
    scene.server.close(5)
    assert scene.ended == ["wait"]


def test_what_was_received_before_the_end_is_answered_but_for_calls(scene: Scene) -> None:
    os.write(
        scene.typed_fd, HELLO + request(2, "ping") + b"\n" + call(3, "wait") + b"\n" + request(4, "ping")
    )
    scene.close(scene.typed_fd)
    assert scene.serving.get(timeout=20) is None
    assert [message["id"] for message in scene.read(3)] == [1, 2, 4]
    scene.server.close(5)
    assert scene.ended == scene.started


def test_a_wrong_start_ends_the_conversation(scene: Scene) -> None:
    scene.type(request(1, "tools/list"))
    assert str(scene.serving.get(timeout=20)).startswith("expect initialized request, but received: ")


def test_an_input_that_ends_too_early_is_no_good_end(scene: Scene) -> None:
    scene.close(scene.typed_fd)
    assert scene.serving.get(timeout=20) == "connection closed: initialized request"


def test_a_closed_output_ends_the_conversation(scene: Scene) -> None:
    scene.greet()
    scene.type(call(3, "wait"))
    scene.close(scene.shown_fd)
    scene.type(request(4, "ping"))
    assert scene.serving.get(timeout=20) is None
    scene.server.close(5)
    assert scene.ended == ["wait"]


def test_a_state_counts_for_the_calls_behind_it(scene: Scene) -> None:
    scene.greet()
    params = {"sandboxPolicy": {"type": "danger-full-access"}, "sandboxCwd": "/"}
    notification = json.dumps({"jsonrpc": "2.0", "method": "codex/sandbox-state/update", "params": params})
    scene.type(call(2, "state"), notification.encode(), call(3, "state"))
    texts = {message["id"]: json.dumps(message["result"]) for message in scene.read(2)}
    assert "none" in texts[2]
    assert "disabled" in texts[3]


def test_a_line_that_is_too_long_is_answered_and_skipped(scene: Scene) -> None:
    scene.greet()
    scene.type(b"x" * (LINE_BYTES + 1), request(2, "ping"), b"y" * 300_000, b"", request(3, "ping"))
    first, second, third, fourth = scene.read(4)
    assert (second["id"], fourth["id"]) == (2, 3)
    for refused in (first, third):
        error = cast(JsonObject, refused["error"])
        assert (refused["id"], error["code"]) == (None, -32600)
        assert error["message"] == "Invalid Request: the line is too long"


def test_a_cancelled_call_is_ended_and_not_answered(scene: Scene) -> None:
    scene.greet()
    scene.type(call("a", "wait"))
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "a"}}
    scene.type(json.dumps(cancel).encode(), request(5, "ping"))
    assert scene.read(1) == [{"jsonrpc": "2.0", "id": 5, "result": {}}]
    wait_until(lambda: scene.ended == ["wait"], pause=gevent.sleep)
    scene.type(request(6, "ping"))
    assert scene.read(1) == [{"jsonrpc": "2.0", "id": 6, "result": {}}]


def test_ten_thousand_pings_are_answered_in_order(scene: Scene) -> None:
    scene.greet()
    sender = gevent.spawn(scene.type, *(request(number, "ping") for number in range(10_000)))
    assert [message["id"] for message in scene.read(10_000)] == list(range(10_000))
    sender.get(timeout=20)


def test_a_client_that_does_not_read_is_held_back_and_loses_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "REPLY_BYTES", 10_000)
    monkeypatch.setattr(inbox, "INBOX_BYTES", 10_000)
    scene.greet()
    pings = 30_000
    sender = gevent.spawn(scene.type, *(request(number, "ping") for number in range(pings)))
    outbox = scene.transport.outbox
    wait_until(lambda: outbox.queued > HIGH_WATER_BYTES and scene.server._inbox._paused, pause=gevent.sleep)
    queued = outbox.queued
    for _ in range(50):
        turns()
    assert outbox.queued == queued
    assert not sender.ready()
    assert [message["id"] for message in scene.read(pings)] == list(range(pings))
    sender.get(timeout=20)


def test_calls_nobody_reads_the_answers_of_keep_their_turns(scene: Scene) -> None:
    scene.greet()
    scene.type(*(call(number, "big") for number in range(100)))
    assert len(scene.started) <= 40
    assert sorted(cast(int, message["id"]) for message in scene.read(100)) == list(range(100))
    assert len(scene.ended) == 100


def test_random_bytes_are_answered_and_the_server_stays_up(scene: Scene) -> None:
    scene.greet()
    chosen = random.Random(7)
    for _ in range(50):
        line = chosen.randbytes(chosen.randrange(1, 200)).replace(b"\n", b"")
        scene.type(b"\xff" + line)
    errors = [cast(JsonObject, message["error"])["code"] for message in scene.read(50)]
    assert set(errors) == {-32700}
    scene.type(request(2, "ping"))
    assert scene.result() == {}


def test_a_fault_of_ours_costs_one_line(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.greet()

    def fail(_: bytes) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(scene.server._session, "handle", fail)
        scene.type(request(2, "ping"))
        message = scene.read(1)[0]
    assert message["error"] == {"code": -32603, "message": "internal error: ZeroDivisionError"}
    scene.type(request(3, "ping"))
    assert scene.result() == {}
