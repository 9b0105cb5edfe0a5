"""The table of calls: whose answer is whose, without any connection."""

from __future__ import annotations

import json

import msgspec
import pytest

from execserver.client.errors import (
    ExecServerError,
    InternalError,
    InvalidRequestError,
    ProtocolViolation,
    TransportClosed,
)
from execserver.client.rules.calls import Calls, Outcome, closed_by
from execserver.client.rules.event_log import Output
from execserver.protocol.lifting import JsonText


class Heard:
    """A table whose waiters are names, and what came of it."""

    def __init__(self) -> None:
        self.woken: dict[str, Outcome] = {}
        self.notes: list[tuple[str, object]] = []
        self.calls: Calls[str] = Calls(self.woken.__setitem__, self._note, self._output)

    def _note(self, method: str, params: JsonText) -> None:
        self.notes.append((method, msgspec.json.decode(bytes(params))))

    def _output(self, process_id: str, output: Output) -> None:
        self.notes.append((process_id, output))

    def take(self, message: object) -> None:
        self.calls.take(json.dumps(message).encode())

    def error(self, name: str) -> ExecServerError:
        found = self.woken[name]
        assert isinstance(found, ExecServerError)
        return found


@pytest.fixture
def heard() -> Heard:
    return Heard()


def test_calls_are_numbered_and_answers_find_their_waiter(heard: Heard) -> None:
    assert heard.calls.begin("m", {"x": 1}, "first") == (1, b'{"id":1,"method":"m","params":{"x":1}}')
    assert heard.calls.begin("m", None, "second")[0] == 2
    heard.take({"id": 2, "result": {"two": 2}})
    assert {name: bytes(raw) for name, raw in heard.woken.items()} == {"second": b'{"two": 2}'}  # type: ignore[arg-type]
    assert len(heard.calls) == 1


def test_params_that_are_no_json_make_no_call_and_use_no_number(heard: Heard) -> None:
    with pytest.raises(TypeError):
        heard.calls.begin("m", {"x": object()}, "bad")
    assert len(heard.calls) == 0
    assert heard.calls.begin("m", None, "good")[0] == 1


def test_a_forgotten_call_wakes_nobody(heard: Heard) -> None:
    call_id, _ = heard.calls.begin("m", None, "gone")
    heard.calls.forget(call_id)
    heard.calls.forget(call_id)
    heard.take({"id": call_id, "result": 1})
    assert heard.woken == {}


def test_answers_nobody_asked_for_are_ignored(heard: Heard) -> None:
    heard.calls.begin("m", None, "waits")
    for odd in (
        {"id": 9, "result": 1},
        {"id": "1", "result": 1},
        {"id": 9, "error": {"code": 1, "message": ""}},
    ):
        heard.take(odd)
    assert heard.woken == {}


def test_an_error_answer_has_the_class_of_its_code_and_names_the_method(heard: Heard) -> None:
    heard.calls.begin("fs/x", None, "waits")
    heard.take({"id": 1, "error": {"code": -32603, "message": "disk"}})
    error = heard.error("waits")
    assert type(error) is InternalError
    assert str(error) == "fs/x: disk (code -32603)"


def test_an_error_without_id_is_everybodys(heard: Heard) -> None:
    heard.calls.begin("a", None, "one")
    heard.calls.begin("b", None, "two")
    heard.take({"id": -1, "error": {"code": -32600, "message": "what?"}})
    assert [type(heard.error(name)) for name in ("one", "two")] == [InvalidRequestError] * 2
    assert len(heard.calls) == 0


def test_output_and_notifications_go_to_the_owner_in_order(heard: Heard) -> None:
    heard.take({"method": "a", "params": {"n": 1}})
    heard.calls.take(
        b'{"method":"process/output","params":{"processId":"p","seq":1,"stream":"pty","chunk":"eA=="}}'
    )
    assert heard.notes == [("a", {"n": 1}), ("p", Output(1, "pty", b"x"))]


@pytest.mark.parametrize("message", [b"", b"{}", b"\xff", b'{"id":1,"method":"server/asks"}', b"[" * 100_000])
def test_what_is_no_message_of_a_server_is_a_violation(heard: Heard, message: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        heard.calls.take(message)


def test_the_end_wakes_everybody_with_an_error_of_his_own(heard: Heard) -> None:
    heard.calls.begin("a", None, "one")
    heard.calls.begin("b", None, "two")
    cause = ProtocolViolation("nonsense")
    heard.calls.end_all(cause)
    errors = [heard.error(name) for name in ("one", "two")]
    assert [type(error) for error in errors] == [TransportClosed] * 2
    assert errors[0] is not errors[1]
    assert [error.__cause__ for error in errors] == [cause] * 2
    assert str(closed_by(cause)) == "nonsense"
