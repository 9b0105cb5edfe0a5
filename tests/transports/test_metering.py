"""Connections that are observed: every request is told once, and the client sees no difference."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from execserver.handlers.replies import Answer, InParts, Later, Reply, Result, Streamed
from execserver.protocol.errors import InvalidRequest
from execserver.services.reporting.observers import Answered
from tests.transports.scene import Gate, Handler, Play, at_once, result


class Noted:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, str]] = []
        self.clients: list[int] = []

    def connected(self) -> None:
        self.clients.append(1)

    def disconnected(self) -> None:
        self.clients.append(-1)

    def answered(self, answered: Answered) -> None:
        assert answered.seconds >= 0
        assert (answered.error is None) == (answered.result != "error")
        self.answers.append((answered.request.method, answered.result))

    def refusal(self, method: str) -> str | None:
        return "not here" if method == "forbidden" else None


def refused(_params: object) -> Answer:
    raise InvalidRequest("not now")


HANDLERS: dict[str, Handler] = {
    "now": at_once(result),
    "turn": result,
    "later": lambda params: Later(lambda: result(params)),
    "refused": refused,
    "broken": lambda params: Later(lambda: refused(params)),  # type: ignore[arg-type, return-value]
    "reply": lambda params: Reply(result(params), lambda: None),
    "parts": lambda _: InParts(b"[", b"1", b"]"),
    "pieces": lambda _: Streamed(iter([b"[", b"2", b"]"])),
}
ERRORS = {"refused", "broken"}


def test_each_request_is_told_with_its_result(play: Play) -> None:
    noted = Noted()
    one = play(observer=noted, **HANDLERS)
    for name in HANDLERS:
        one.ask(name)
    assert len(one.wait_for(len(HANDLERS))) == len(HANDLERS)
    assert sorted(noted.answers) == sorted(
        (name, "error" if name in ERRORS else "success") for name in HANDLERS
    )
    assert noted.clients == [1]


@pytest.mark.parametrize("at_a_time", [0, 4])
def test_what_an_observer_forbids_is_not_done(play: Play, at_a_time: int) -> None:
    noted = Noted()
    done: list[object] = []

    def do(params: object) -> Result:
        done.append(params)
        return result()

    one = play(at_a_time, observer=noted, forbidden=do)
    one.ask("forbidden")
    (answer,) = one.wait_for(1)
    assert (answer["error"]["code"], answer["error"]["message"]) == (-32603, "not here")
    assert (done, noted.answers) == ([], [("forbidden", "error")])


def test_a_client_that_leaves_is_told_once_with_what_it_waited_for(play: Play) -> None:
    noted, gate = Noted(), Gate()
    one = play(observer=noted, wait=gate.later, block=gate.wait)
    one.ask("wait")
    one.ask("block", None, "block")
    one.end()
    gate.let_go()
    assert one.finished()
    assert noted.clients == [1, -1]
    assert ("wait", "disconnected") in noted.answers
    assert len(noted.answers) == 3


def test_a_client_sees_no_difference(play: Play) -> None:
    """The same messages, damaged ones among them, to a connection that is observed and to one that is not."""
    chance = random.Random(5)
    names = [*HANDLERS, "now", "now"]

    def message(number: int) -> bytes:
        if chance.random() < 0.1:
            return chance.choice([b"{", b"[1", b"null", b"\xff"])
        return json.dumps({"id": number, "method": chance.choice(names), "params": number}).encode()

    bursts = [[message(1000 * burst + n) for n in range(chance.randrange(1, 9))] for burst in range(300)]
    seen: list[list[Any]] = []
    for observer in (None, Noted()):
        one = play(observer=observer, **HANDLERS)
        got: list[Any] = []
        for burst in bursts:
            one.receive(*burst)
            got += one.answers()
        while len(got) < sum(map(len, bursts)):
            got += one.wait_for(1)
        seen.append(got)
    plain, observed = seen
    assert observed == plain
