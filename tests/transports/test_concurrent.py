"""A connection that works on several requests at a time, and one that is asked for a single one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import pytest

from execserver.handlers.context import Call
from execserver.handlers.lanes import Lane
from execserver.handlers.replies import Answer, InParts, Result, Streamed
from execserver.protocol import methods
from execserver.protocol.envelope import Request
from execserver.protocol.errors import InvalidRequest
from execserver.transports import concurrent
from execserver.transports.connection import Connection
from tests.support.greenlets import turns
from tests.transports.scene import FakeCall, Gate, Play, Scene, ids, result

INFO = methods.ENVIRONMENT_INFO
Concurrently = Callable[..., Scene]


@pytest.fixture
def play_many(play: Play, monkeypatch: pytest.MonkeyPatch) -> Concurrently:
    """Start a connection for four requests at a time; `lane` and `alone` of the params say where they go."""

    def checked(call: Call, request: Request) -> tuple[object, object]:
        params = json.loads(bytes(request.params)) or {}
        if params.get("refused"):
            raise InvalidRequest("not now")
        return INFO, {**params, "method": request.method}

    def handle(call: Call, method: object, params: Any) -> Answer:
        return cast(FakeCall, call).handlers[params["method"]](params)

    def lane_of(method: object, params: dict[str, Any]) -> Lane | None:
        return Lane(params["lane"], params.get("alone", True)) if "lane" in params else None

    for name, fake in (("checked", checked), ("handle", handle), ("lane_of", lane_of)):
        monkeypatch.setattr(concurrent, name, fake)
    return partial(play, 4)


def test_answers_come_as_they_are_ready(play_many: Concurrently) -> None:
    gate = Gate()
    one = play_many(slow=gate.wait, fast=result)
    one.ask("slow", {"lane": "a"})
    one.ask("fast", {"lane": "b"})
    assert ids(one.wait_for(1)) == [2]
    gate.let_go()
    assert ids(one.wait_for(1)) == [1]


def test_requests_of_one_lane_keep_their_order(play_many: Concurrently) -> None:
    gate, order = Gate(), []

    def note(params: Any) -> Result:
        order.append(params["n"])
        return result()

    one = play_many(slow=gate.wait, note=note)
    one.ask("slow", {"lane": "a"})
    one.ask("note", {"lane": "a", "n": 1})
    one.ask("note", {"lane": "a", "n": 2})
    one.ask("note", {"lane": "b", "n": 3})
    assert (order, ids(one.wait_for(1))) == ([3], [4])
    gate.let_go()
    assert (ids(one.wait_for(3)), order) == ([1, 2, 3], [3, 1, 2])


def test_those_that_only_look_run_side_by_side(play_many: Concurrently) -> None:
    gate = Gate()
    one = play_many(look=gate.wait, write=result)
    one.ask("look", {"lane": "a", "alone": False})
    one.ask("look", {"lane": "a", "alone": False})
    one.ask("write", {"lane": "a"})
    turns()
    assert (gate.entered, one.answers()) == (2, [])
    gate.let_go()
    assert ids(one.wait_for(3))[2] == 3


def test_no_more_run_than_were_asked_for(play_many: Concurrently) -> None:
    gate = Gate()
    one = play_many(slow=gate.wait)
    for number in range(9):
        one.ask("slow", {"lane": number})
    turns()
    assert gate.entered == 4
    gate.let_go()
    assert sorted(ids(one.wait_for(9))) == list(range(1, 10))


def test_there_is_an_upper_limit_whatever_was_asked_for(play_many: Concurrently, play: Play) -> None:
    one = play(10**9, slow=result)
    assert isinstance(one.connection, concurrent.ConcurrentConnection)
    assert one.connection._places == concurrent.MAX_RUNNING == 256


def test_large_requests_reach_a_bound_sooner(
    play_many: Concurrently, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concurrent, "WAITING_BYTES", 1000)
    gate = Gate()
    one = play_many(slow=gate.wait)
    one.ask("slow", {"lane": 1, "x": "x" * 2000})
    one.ask("slow", {"lane": 2})
    assert gate.entered == 1
    gate.let_go()
    one.wait_for(2)


def test_whether_a_request_is_allowed_is_decided_in_their_order(play_many: Concurrently) -> None:
    gate = Gate()
    one = play_many(slow=gate.wait)
    one.ask("slow", {"lane": 1})
    one.ask("slow", {"refused": True})
    assert [answer["error"]["message"] for answer in one.wait_for(1)] == ["not now"]
    gate.let_go()
    one.wait_for(1)


def test_a_method_without_a_lane_goes_alone(play_many: Concurrently, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrent, "AT_ONCE", frozenset())
    gate = Gate()
    one = play_many(slow=gate.wait, odd=result)
    one.ask("slow", {"lane": "a"})
    one.ask("odd")
    assert one.answers() == []
    gate.let_go()
    assert ids(one.wait_for(2)) == [1, 2]


def test_messages_in_pieces_do_not_mix(play_many: Concurrently) -> None:
    gates = [Gate(), Gate()]

    def pieces(gate: Gate) -> Iterator[bytes]:
        yield b'["a",'
        gate.wait()
        yield b'"b"]'

    one = play_many(stream=lambda params: Streamed(pieces(gates[params["lane"]])), small=result)
    one.ask("stream", {"lane": 0})
    one.ask("stream", {"lane": 1})
    one.ask("small", {"lane": 2})
    gates[1].let_go()
    gates[0].let_go()
    answers = {answer["id"]: answer["result"] for answer in one.wait_for(3)}
    assert answers == {1: ["a", "b"], 2: ["a", "b"], 3: {"lane": 2, "method": "small"}}


def test_a_failure_between_pieces_ends_the_connection(play_many: Concurrently) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"["
        raise ValueError("no more")

    one = play_many(stream=lambda params: Streamed(pieces()))
    one.ask("stream", {"lane": 0})
    assert one.finished()
    assert one.events == ["close 1011 internal error"]


def test_a_failure_is_the_answer_of_its_request_only(play_many: Concurrently) -> None:
    def fail(params: object) -> InParts:
        raise KeyError("x")

    one = play_many(fail=fail, fast=result)
    one.ask("fail", {"lane": 0})
    one.ask("fast", {"lane": 0})
    first, second = one.wait_for(2)
    assert (first["error"]["code"], second["id"]) == (-32603, 2)


def test_what_runs_is_brought_to_its_end_when_the_client_leaves(play_many: Concurrently) -> None:
    """The context is closed only then: open files are closed with it."""
    gate = Gate()
    one = play_many(slow=gate.wait)
    one.ask("slow", {"lane": 0})
    one.end()
    assert one.ends == ["detach"]
    gate.let_go()
    assert one.finished()
    assert one.ends == ["detach", "context closed"]


def test_one_at_a_time_makes_long_polls_wait_too(play: Play) -> None:
    gate = Gate()
    one = play(1, poll=gate.later, echo=result)
    assert type(one.connection) is Connection
    one.ask("poll")
    one.ask("echo")
    assert (gate.entered, one.answers()) == (1, [])
    gate.let_go()
    assert ids(one.wait_for(2)) == [1, 2]
