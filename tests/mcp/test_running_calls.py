"""Calls side by side: turns, bounds, cancellation, and answers nobody reads."""

from __future__ import annotations

import json
from typing import cast

import gevent
import msgspec
import pytest
from gevent.event import Event

from execserver.mcp import running_calls
from execserver.mcp.elicitation import Answer, Ask, Prompts, Question
from execserver.mcp.jsonrpc import Id, Key
from execserver.mcp.running_calls import RunningCalls
from execserver.mcp.sandbox_state import SandboxState
from execserver.mcp.session import StartCall
from execserver.mcp.tool import ExecParams, ExecResult, ToolError
from execserver.protocol.errors import InvalidParams
from tests.support.greenlets import turns

JsonObject = dict[str, object]
QUESTION = Question("/bin/true", ["true"], "/")


class Sink:
    """Keeps what is sent; has room unless told otherwise."""

    def __init__(self) -> None:
        self.sent: list[JsonObject] = []
        self.room = Event()
        self.room.set()
        self.closed = False
        self.has_room = True
        self.may_go_on = True

    def send(self, message: bytes) -> None:
        self.sent.append(json.loads(message))

    def send_parts(self, *parts: bytes) -> None:
        self.send(b"".join(parts))

    carries_binary = False
    send_binary = send_parts

    def try_send(self, message: bytes) -> bool:
        return False

    def hold(self) -> None:
        pass

    def release(self) -> None:
        pass

    def wait_for_room(self) -> bool:
        self.room.wait()
        return not self.closed


class Scene:
    """Calls whose command says what becomes of them; `release` ends those that wait."""

    def __init__(self) -> None:
        self.sink = Sink()
        self.prompts = Prompts(self.sink.send)
        self.calls = RunningCalls(self.run, self.prompts, self.sink)
        self.running: list[str] = []
        self.release = Event()
        self.answers: list[Answer] = []

    def run(self, params: ExecParams, state: SandboxState | None, ask: Ask, cancelled: Event) -> ExecResult:
        self.running.append(params.command)
        if params.command.startswith("wait"):
            gevent.wait([self.release, cancelled], count=1)
        elif params.command == "ask":
            self.answers.append(ask(QUESTION))
        elif params.command == "stubborn":
            self.release.wait()
        elif params.command == "error":
            raise ToolError(-32603, "sandbox error", {"output": "x"})
        elif params.command == "refused":
            raise InvalidParams("not like this")
        elif params.command == "bug":
            raise ZeroDivisionError
        return ExecResult(0, params.command, 0)

    def start(self, key: Key, command: str) -> None:
        self.calls.start(
            StartCall(Id(msgspec.Raw(json.dumps(key).encode()), key), ExecParams(command, "/"), None)
        )
        turns(1)

    def outcome(self, index: int = -1) -> tuple[object, object]:
        """Return the id of an answer and its output or its error."""
        message = self.sink.sent[index]
        if "error" in message:
            return message["id"], message["error"]
        content = cast(list[JsonObject], cast(JsonObject, message["result"])["content"])
        return message["id"], json.loads(str(content[0]["text"]))["output"]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_calls_run_side_by_side_and_are_answered_as_they_end(scene: Scene) -> None:
    scene.start("a", "wait")
    scene.start(2, "echo")
    assert [scene.outcome(index) for index in range(len(scene.sink.sent))] == [(2, "echo")]
    scene.release.set()
    turns()
    assert scene.outcome() == ("a", "wait")


def test_errors_are_answers(scene: Scene) -> None:
    scene.start(1, "error")
    assert scene.outcome() == (1, {"code": -32603, "message": "sandbox error", "data": {"output": "x"}})
    scene.start(2, "refused")
    assert scene.outcome() == (2, {"code": -32602, "message": "not like this"})


def test_a_fault_of_ours_costs_one_call(scene: Scene) -> None:
    scene.start(1, "bug")
    assert scene.outcome() == (1, {"code": -32603, "message": "internal error: ZeroDivisionError"})
    scene.start(2, "echo")
    assert scene.outcome() == (2, "echo")


def test_a_cancelled_call_is_ended_and_never_answered(scene: Scene) -> None:
    scene.start(1, "wait")
    scene.calls.cancel(1, "tired")
    turns()
    assert scene.sink.sent == []
    scene.start(1, "echo")
    assert scene.outcome() == (1, "echo")


def test_cancelling_what_is_not_there_changes_nothing(scene: Scene) -> None:
    scene.start(1, "wait")
    for key in ("1", 2, 1.5):
        scene.calls.cancel(key, None)
    scene.release.set()
    turns()
    assert scene.outcome() == (1, "wait")
    scene.calls.cancel(1, None)


def test_a_second_call_with_the_same_id_is_refused_and_the_first_goes_on(scene: Scene) -> None:
    scene.start(1, "wait")
    scene.start(1, "echo")
    assert scene.outcome() == (
        1,
        {"code": -32600, "message": "Invalid Request: a call with this id is running"},
    )
    scene.start("1", "echo")
    assert scene.outcome() == ("1", "echo")
    scene.release.set()
    turns()
    assert scene.outcome() == (1, "wait")
    assert scene.running == ["wait", "echo"]


def test_the_id_of_a_cancelled_call_is_taken_until_it_has_ended(scene: Scene) -> None:
    scene.start(1, "stubborn")
    scene.calls.cancel(1, None)
    scene.start(1, "echo")
    assert scene.outcome()[1] == {
        "code": -32600,
        "message": "Invalid Request: a call with this id is running",
    }
    scene.release.set()
    turns()
    assert len(scene.sink.sent) == 1
    scene.start(1, "echo")
    assert scene.outcome() == (1, "echo")


def test_at_the_bound_calls_wait_in_order(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_calls, "MAX_RUNNING", 2)
    for key in range(5):
        scene.start(key, f"wait {key}")
    assert scene.running == ["wait 0", "wait 1"]
    scene.calls.cancel(3, None)  # in line: it never runs
    scene.calls.cancel(0, None)
    turns()
    assert scene.running == ["wait 0", "wait 1", "wait 2"]
    scene.release.set()
    turns(6)
    assert scene.running == ["wait 0", "wait 1", "wait 2", "wait 4"]
    assert sorted(str(message["id"]) for message in scene.sink.sent) == ["1", "2", "4"]


def test_at_the_bound_of_the_line_calls_are_refused(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_calls, "MAX_RUNNING", 1)
    monkeypatch.setattr(running_calls, "MAX_WAITING", 2)
    for key in range(4):
        scene.start(key, "wait")
    assert scene.outcome() == (3, {"code": -32603, "message": "too many calls: 1 are running, 2 wait"})
    scene.calls.close(0)


def test_waiting_commands_are_bounded_in_bytes(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_calls, "MAX_RUNNING", 1)
    monkeypatch.setattr(running_calls, "WAITING_BYTES", 10)
    for key in range(4):
        scene.start(key, "wait 12345")
    assert [message["id"] for message in scene.sink.sent] == [2, 3]
    scene.release.set()
    turns()
    scene.start(5, "echo")
    assert scene.outcome() == (5, "echo")


def test_questions_of_an_ended_call_are_withdrawn(scene: Scene) -> None:
    scene.start(1, "ask")
    assert scene.sink.sent[-1]["method"] == "elicitation/create"
    scene.calls.cancel(1, None)
    turns()
    assert scene.answers == [Answer.FAILED]
    assert [message.get("method") for message in scene.sink.sent] == [
        "elicitation/create",
        "notifications/cancelled",
    ]


def test_an_answered_question_lets_the_call_end(scene: Scene) -> None:
    scene.start(1, "ask")
    scene.prompts.answered(0, Answer.ACCEPT)
    turns()
    assert scene.answers == [Answer.ACCEPT]
    assert scene.outcome() == (1, "ask")


def test_a_call_whose_answer_has_no_room_keeps_its_turn(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_calls, "MAX_RUNNING", 1)
    scene.sink.room.clear()
    scene.start(1, "echo 1")
    scene.start(2, "echo 2")
    assert (scene.running, scene.sink.sent) == (["echo 1"], [])
    scene.sink.room.set()
    turns()
    assert [message["id"] for message in scene.sink.sent] == [1, 2]


def test_a_call_cancelled_while_its_answer_waits_is_not_answered(scene: Scene) -> None:
    scene.sink.room.clear()
    scene.start(1, "echo")
    scene.calls.cancel(1, None)
    scene.sink.room.set()
    turns()
    assert scene.sink.sent == []


def test_the_end_cancels_all_and_waits_for_them(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_calls, "MAX_RUNNING", 2)
    for key in range(3):
        scene.start(key, "wait")
    scene.calls.close(5)
    turns()
    assert scene.running == ["wait", "wait"]
    assert scene.sink.sent == []


def test_the_end_does_not_wait_for_ever(scene: Scene) -> None:
    scene.start(1, "stubborn")
    scene.calls.close(0.01)
    turns()
    assert scene.sink.sent == []
