"""Requests of the server to a client."""

from __future__ import annotations

from typing import cast

import gevent
import msgspec

from execserver.protocol.envelope import ErrorBody, ErrorMessage, Response
from execserver.protocol.network import NetworkPolicyDestination
from execserver.services.clients import questions
from execserver.services.clients.questions import Questions
from execserver.services.clients.sink import MessageSink

PARAMS = NetworkPolicyDestination(protocol="http", host="a", port=1)


class FakeSink:
    """Notes what is sent."""

    def __init__(self) -> None:
        self.closed = False
        self.sent: list[bytes] = []

    def send(self, message: bytes) -> None:
        self.sent.append(message)


def made() -> tuple[Questions, FakeSink]:
    sink = FakeSink()
    return Questions(cast(MessageSink, sink)), sink


def answer(number: int | str) -> Response:
    return Response(number, msgspec.Raw(b"{}"))


def test_an_answer_reaches_its_question() -> None:
    asked, sink = made()
    first, second = (gevent.spawn(asked.ask, "m", PARAMS, 10) for _ in range(2))
    gevent.sleep(0)
    assert asked.unanswered
    error = ErrorMessage(ErrorBody(1, "x"), 1)
    assert asked.answered(answer(2))
    assert asked.answered(error)
    assert (first.get(), second.get()) == (error, answer(2))
    assert sink.sent[0] == b'{"id":1,"method":"m","params":{"protocol":"http","host":"a","port":1}}'
    assert not asked.unanswered


def test_an_answer_to_nothing_is_not_taken() -> None:
    asked, _ = made()
    waiting = gevent.spawn(asked.ask, "m", PARAMS, 10)
    gevent.sleep(0)
    assert [asked.answered(one) for one in (answer(2), answer("1"), "text")] == [False] * 3
    assert asked.answered(answer(1))
    assert not asked.answered(answer(1))
    waiting.join()


def test_a_late_answer_is_ignored_once() -> None:
    asked, _ = made()
    assert asked.ask("m", PARAMS, 0.01) is None
    assert asked.answered(answer(1))
    assert not asked.answered(answer(1))


def test_the_end_of_the_client_answers_everything_at_once() -> None:
    asked, sink = made()
    waiting = gevent.spawn(asked.ask, "m", PARAMS, 1000)
    gevent.sleep(0)
    asked.close()
    assert waiting.get(timeout=20) is None
    assert asked.ask("m", PARAMS, 1000) is None
    assert len(sink.sent) == 1


def test_too_many_questions_get_no_answer(monkeypatch: object) -> None:
    asked, sink = made()
    waiting = [gevent.spawn(asked.ask, "m", PARAMS, 1000) for _ in range(questions.MAX_OPEN)]
    gevent.sleep(0)
    assert asked.ask("m", PARAMS, 1000) is None
    assert len(sink.sent) == questions.MAX_OPEN
    asked.close()
    gevent.joinall(waiting)
