"""Each error says what to do about it, and carries what the server sent."""

from __future__ import annotations

import msgspec
import pytest

from execserver.client import errors
from execserver.client.errors import (
    ConnectFailed,
    ExecServerError,
    InternalError,
    MethodNotFoundError,
    RequestFailed,
    StdinUnavailable,
    kept,
    request_failed,
)
from execserver.client.rules import wire
from execserver.client.rules.calls import Calls

CLASSES = [
    each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, ExecServerError)
]


def answered(text: bytes) -> RequestFailed:
    """Return the error of a call that is answered with a text."""
    woken: list[object] = []
    calls: Calls[None] = Calls(lambda _, outcome: woken.append(outcome), lambda *_: None, lambda *_: None)
    calls.begin("process/start", {}, None)
    calls.take(text)
    assert isinstance(woken[0], RequestFailed)
    return woken[0]


def test_data_of_an_error_arrives_as_plain_values() -> None:
    found = answered(b'{"id":1,"error":{"code":-32603,"message":"no","data":{"why":["x",1,null]}}}')
    assert (type(found), found.code, found.data) == (InternalError, -32603, {"why": ["x", 1, None]})
    assert answered(b'{"id":1,"error":{"code":7,"message":"no"}}').data is None
    assert answered(b'{"id":1,"error":{"code":7,"message":"no","data":null}}').data is None


def test_an_error_keeps_its_data_and_its_hint_when_it_is_copied() -> None:
    error = request_failed(-32601, "no such method", "x/y", [1])
    copy = kept(error)
    assert (type(copy), copy.data, copy.hint) == (MethodNotFoundError, [1], error.hint)
    assert error.hint is not None


@pytest.mark.parametrize("kind", CLASSES)
def test_a_hint_is_one_line_or_none(kind: type[ExecServerError]) -> None:
    hint = kind._hint
    assert hint is None or (hint.isprintable() and len(hint) < 100)


def test_hints_go_by_what_happened() -> None:
    assert "token" in str(ConnectFailed("the server answered with status 401").hint)
    assert "--listen" in str(ConnectFailed("refused").hint)
    assert "pipe_stdin" in str(StdinUnavailable("p", "stdinClosed").hint)
    assert StdinUnavailable("p", "unknownProcess").hint is None
    missing = answered(b'{"id":1,"error":{"code":-32603,"message":"No such file or directory (os error 2)"}}')
    assert "PATH" in str(missing.hint)
    assert answered(b'{"id":1,"error":{"code":-32603,"message":"other"}}').hint is None


def test_data_that_nests_too_deeply_harms_one_call_only() -> None:
    deep = b'{"id":1,"error":{"code":7,"message":"no","data":' + b"[" * 100_000 + b"]" * 100_000 + b"}}"
    with pytest.raises(ExecServerError):
        raise answered(deep)


def test_an_error_without_data_has_none() -> None:
    message = wire.decode_message(b'{"id":1,"error":{"code":7,"message":"no"}}')
    assert isinstance(message, wire.ErrorMessage)
    assert wire.error_data(message) is None
    assert msgspec.json.encode(None) == b"null"
