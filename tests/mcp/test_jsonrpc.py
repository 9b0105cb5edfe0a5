"""One line and one message: what is read, what is answered when it is none, and what is written."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.mcp.jsonrpc import (
    BadLine,
    Notification,
    Reply,
    Request,
    encode_error,
    encode_failure,
    encode_notification,
    encode_request,
    encode_result,
    parse,
)
from execserver.protocol.errors import InvalidParams

NOT_JSON = [
    b"not json",
    b"{",
    b'{"a":1}x',
    b"\xff\xfe",
    b'{"jsonrpc":"2.0","id":1,"method":"p","params":"\xc3\x28"}',
    b'{"params":"\\ud800"}',
    b"nan",
    b"'x'",
    b"{'a':1}",
    b'{"a":1,}',
    b"\x00",
]
NO_MESSAGE = [
    *(b"[]", b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', b"5", b'"x"', b"null", b"true", b"{}"),
    b'{"jsonrpc":"2.0","id":1}',
    b'{"jsonrpc":"2.0","method":5}',
    b'{"jsonrpc":"2.0","id":null,"method":"p"}',
    b'{"jsonrpc":"2.0","id":true,"method":"p"}',
    b'{"jsonrpc":"2.0","id":[1],"method":"p"}',
    b'{"jsonrpc":"2.0","id":1e999,"method":"p"}',
    b'{"method":"p"}',
    b'{"jsonrpc":"1.0","method":"p"}',
]


def refusal(line: bytes) -> tuple[object, int]:
    """Return the id and the code of the answer to a line that is no message."""
    with pytest.raises(BadLine) as caught:
        parse(line)
    answer = json.loads(caught.value.answer)
    assert set(answer) == {"jsonrpc", "id", "error"}
    assert answer["error"]["message"].startswith(("Parse error", "Invalid Request"))
    return answer["id"], answer["error"]["code"]


@pytest.mark.parametrize(
    "id_text", [b"1", b'"a"', b'"\\u00e9"', b"-7", b"1.50", b"12345678901234567890123", b'""']
)
def test_a_request_keeps_its_id_as_it_was_written(id_text: bytes) -> None:
    message = parse(b'{"jsonrpc":"2.0","id":%b,"method":"ping"}' % id_text)
    assert isinstance(message, Request)
    assert (bytes(message.id.text), message.id.key) == (id_text, json.loads(id_text))
    assert (message.method, message.params) == ("ping", None)
    assert encode_result(message.id.text, b"{}") == b'{"jsonrpc":"2.0","id":%b,"result":{}}' % id_text


def test_params_stay_as_they_are() -> None:
    message = parse(b'{"params": {"a": [1.0, "x"]}, "method":"m","jsonrpc":"2.0", "id":1, "more": 2}')
    assert isinstance(message, Request)
    assert message.params is not None
    assert bytes(message.params) == b'{"a": [1.0, "x"]}'
    null = parse(b'{"jsonrpc":"2.0","method":"m","params":null}')
    assert isinstance(null, Notification)
    assert null.params is None


def test_a_message_without_an_id_is_a_notification() -> None:
    message = parse(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
    assert message == Notification("notifications/initialized", None)


def test_replies_say_which_request_and_what() -> None:
    result = parse(b'{"jsonrpc":"2.0","id":3,"result":{"action":"accept"}}')
    assert isinstance(result, Reply)
    assert result.key == 3
    assert result.result is not None
    assert bytes(result.result) == b'{"action":"accept"}'
    assert parse(b'{"jsonrpc":"2.0","id":3,"error":{"code":1,"message":"no"}}') == Reply(3, None)
    assert parse(b'{"jsonrpc":"2.0","id":null,"error":{}}') == Reply(None, None)
    assert parse(b'{"jsonrpc":"2.0","result":{"x":1}}').key is None  # type: ignore[union-attr]


@pytest.mark.parametrize("line", NOT_JSON)
def test_what_is_not_json_is_a_parse_error(line: bytes) -> None:
    assert refusal(line) == (None, -32700)


@pytest.mark.parametrize("line", NO_MESSAGE)
def test_json_that_is_no_message_is_an_invalid_request(line: bytes) -> None:
    assert refusal(line) == (None, -32600)


@pytest.mark.parametrize("version", [b'"1.0"', b"2.0", b"null", b'"2.00"'])
def test_another_version_is_refused_with_the_id_of_the_request(version: bytes) -> None:
    assert refusal(b'{"jsonrpc":%b,"id":"x","method":"ping"}' % version) == ("x", -32600)


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":'])
def test_deep_nesting_is_refused_and_does_no_harm(opening: bytes) -> None:
    assert refusal(opening * 200_000) == (None, -32700)
    assert refusal(b'{"jsonrpc":"2.0","id":1,"method":"ping","params":' + opening * 200_000) == (None, -32700)


@given(st.binary(max_size=80))
def test_any_bytes_give_a_message_or_an_answer(line: bytes) -> None:
    try:
        parse(line)
    except BadLine as error:
        code = json.loads(error.answer)["error"]["code"]
    else:
        code = -32600
    assert code in (-32700, -32600)


def test_errors_carry_data_only_when_there_is_any() -> None:
    id_text = msgspec.Raw(b"1")
    assert encode_error(id_text, InvalidParams("no")) == (
        b'{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no"}}'
    )
    with_data = json.loads(encode_failure(id_text, 5, "lone \udcff", msgspec.Raw(b"[1]")))
    assert with_data["error"] == {"code": 5, "message": "lone ?", "data": [1]}


def test_what_we_send_is_one_line() -> None:
    request = encode_request(0, "elicitation/create", {"message": "a\nb"})
    assert json.loads(request) == {
        "jsonrpc": "2.0",
        "id": 0,
        "method": "elicitation/create",
        "params": {"message": "a\nb"},
    }
    notification = encode_notification("notifications/cancelled", {"requestId": 0})
    assert b"\n" not in request + notification
    assert json.loads(notification) == {
        "jsonrpc": "2.0",
        "method": "notifications/cancelled",
        "params": {"requestId": 0},
    }
