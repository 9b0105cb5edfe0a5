from __future__ import annotations

import contextlib
import json
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
import simplejson
from hypothesis import given
from hypothesis import strategies as st

from execserver.protocol.envelope import (
    ErrorBody,
    ErrorMessage,
    MalformedMessage,
    Message,
    Notification,
    Request,
    Response,
    Trace,
    around_result,
    encode_error,
    encode_notification,
    encode_request,
    encode_result,
    parse_message,
    parse_reply,
)
from execserver.protocol.errors import InvalidRequest, MethodNotFound
from execserver.protocol.process import ExecClosedNotification, WriteResponse, WriteStatus
from tests.protocol.recorded import Exchange, exchanges

NO_MESSAGE = "data did not match any variant of untagged enum JSONRPCMessage"
PREFIX = "failed to parse websocket JSON-RPC message from exec-server websocket 127.0.0.1:{PORT}: "
I64_MAX = 2**63 - 1

request_ids = st.integers(-I64_MAX - 1, I64_MAX) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=20
)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("aé\n"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=8,
)


def request(text: str | bytes) -> Request:
    message = parse_message(text)
    assert isinstance(message, Request)
    return message


def reason(text: str | bytes) -> str:
    with pytest.raises(MalformedMessage) as caught:
        parse_message(text)
    return caught.value.reason


def test_a_request_keeps_its_params_as_json_text() -> None:
    message = request('{"id":7,"method":"process/read","params":{"processId":"é"}}')
    assert (message.id, message.method) == (7, "process/read")
    assert bytes(message.params) == '{"processId":"é"}'.encode()


@pytest.mark.parametrize("params", ["", ',"params":null'])
def test_missing_params_are_null(params: str) -> None:
    assert bytes(request(f'{{"id":1,"method":"x"{params}}}').params) == b"null"


@pytest.mark.parametrize("text", ["0", "-5", str(I64_MAX), str(-I64_MAX - 1), '"str"', '""', '"1"'])
def test_ids_are_strings_or_signed_64_bit_integers(text: str) -> None:
    assert request(f'{{"id":{text},"method":"x"}}').id == json.loads(text)


@pytest.mark.parametrize(
    "text", [str(I64_MAX + 1), str(-I64_MAX - 2), "1.5", "1.0", "1e1", "null", "true", "[1]", "{}"]
)
def test_a_request_with_another_id_counts_as_a_notification(text: str) -> None:
    assert isinstance(parse_message(f'{{"id":{text},"method":"environment/info"}}'), Notification)


@pytest.mark.parametrize("trace", ["null", "{}", '{"traceparent":"x"}', '{"tracestate":null,"other":5}'])
def test_a_trace_is_ignored(trace: str) -> None:
    assert request(f'{{"id":1,"method":"x","trace":{trace}}}').id == 1


@pytest.mark.parametrize("trace", ["5", '"x"', "true", '{"traceparent":5}'])
def test_a_trace_of_another_type_makes_a_notification(trace: str) -> None:
    assert isinstance(parse_message(f'{{"id":1,"method":"x","trace":{trace}}}'), Notification)


def test_unknown_members_are_ignored() -> None:
    assert request('{"jsonrpc":"1.0","id":1,"method":"x","extra":[1]}').method == "x"


def test_a_message_with_method_and_result_is_a_request() -> None:
    assert request('{"id":1,"method":"x","result":{}}').method == "x"


def test_a_result_beside_a_null_method_makes_a_response() -> None:
    assert isinstance(parse_message('{"id":1,"method":null,"result":{}}'), Response)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"method":"initialized"}', Notification),
        ('{"id":1,"result":null}', Response),
        ('{"id":"a","error":{"code":-32600,"message":"m","data":[1]}}', ErrorMessage),
    ],
)
def test_the_other_kinds_are_told_apart(text: str, kind: type[Message]) -> None:
    assert type(parse_message(text)) is kind
    assert type(parse_reply(text)) is kind


@pytest.mark.parametrize(
    "text",
    [
        *('"x"', "5", "null", "[]", "[1]", "{}", '{"id":1}', '{"method":5}', '{"id":1,"method":5}'),
        *('{"id":1,"error":{"code":1}}', '{"id":1,"error":{"code":9223372036854775808,"message":"x"}}'),
        *('[{"id":1,"method":"x"}]', '[{"id":1,"method":"x"},{"id":2,"method":"x"}]', "5 x", '{"id":1} x'),
    ],
)
def test_json_that_is_no_message_is_malformed(text: str) -> None:
    assert reason(text) == NO_MESSAGE


def test_recorded_malformed_messages_get_the_recorded_reason() -> None:
    recorded = [
        (exchange.text, exchange.error["message"].removeprefix(PREFIX))
        for exchange in _recorded_malformed()
        if exchange.error is not None
    ]
    assert len(recorded) > 15
    assert [(text, reason(text)) for text, _ in recorded] == recorded


def _recorded_malformed() -> list[Exchange]:
    lines = (Path(__file__).parents[1] / "transcripts" / "02-framing.0.142.0.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return [
        Exchange(sent["raw"], answer["msg"]["error"])
        for sent, answer in pairwise(records)
        if sent.get("dir") == "c2s" and "raw" in sent and answer.get("msg", {}).get("id") == -1
        if '"method":"environment/info","method":"x"' not in sent["raw"]  # of two, our last one counts
    ]


def test_the_last_of_two_members_counts() -> None:
    assert request('{"id":1,"id":2,"method":"a","method":"b"}') == Request(2, "b")


def nested(depth: int) -> str:
    return f'{{"id":1,"method":"x","params":{"[" * depth}{"]" * depth}}}'


def test_params_may_be_nested_126_deep_and_no_deeper() -> None:
    assert request(nested(126)).id == 1
    assert reason(nested(127)) == "recursion limit exceeded at line 1 column 157"


def test_brackets_in_texts_do_not_count_as_nesting() -> None:
    text = json.dumps("\\" * 3 + '"[{' * 300)
    assert request(f'{{"id":1,"method":"x","params":[{text},{text}]}}').id == 1


@pytest.mark.parametrize(
    "text", [b"[" * 100_000, b'{"a":' * 100_000, b'{"id":1,"method":"x","params":' + b"[" * 10**6]
)
def test_bottomless_nesting_is_malformed(text: bytes) -> None:
    assert reason(text)


def test_a_large_text_of_brackets_is_refused_without_a_search() -> None:
    assert "recursion" in reason(b"[" * 2000 + b"1" * 5) or reason(b"[" * 2_000_000)


@pytest.mark.parametrize(
    "text", [b'{"id":1,"method":"\xff"}', b'{"id":1,"method":"x","params":"\xed\xa0\x80"}']
)
def test_broken_utf_8_is_malformed_even_in_params(text: bytes) -> None:
    assert reason(text).startswith("invalid unicode code point at line 1 column")


def test_a_lone_surrogate_is_malformed_in_either_form() -> None:
    assert reason('{"id":1,"method":"\ud800"}') == "the text holds a lone surrogate"
    assert reason(r'{"id":1,"method":"\udc00"}') == "lone leading surrogate in hex escape at line 1 column 24"


def test_a_huge_integer_in_params_is_left_to_the_method() -> None:
    assert bytes(request('{"id":1,"method":"x","params":' + "9" * 10_000 + "}").params) == b"9" * 10_000


@given(st.binary(max_size=200))
def test_any_bytes_give_a_message_or_a_typed_error(data: bytes) -> None:
    for parse in (parse_message, parse_reply):
        with contextlib.suppress(MalformedMessage):
            assert isinstance(parse(data), Message)


@given(st.text(st.characters(), max_size=60), st.integers(0, 60))
def test_any_damage_to_a_message_gives_a_message_or_a_typed_error(text: str, at: int) -> None:
    whole = '{"id":1,"method":"process/read","params":{"processId":"é","afterSeq":12}}'
    with contextlib.suppress(MalformedMessage):
        assert isinstance(parse_message(whole[:at] + text + whole[at:]), Message)


@given(request_ids, json_values)
def test_parsing_agrees_with_an_independent_decoder(request_id: int | str, params: object) -> None:
    text = simplejson.dumps({"params": params, "method": "m", "id": request_id})
    message = request(text)
    assert (message.id, message.method) == (request_id, "m")
    assert simplejson.loads(bytes(message.params)) == params


@given(request_ids)
def test_results_are_written_compactly_in_the_contracts_order(request_id: int | str) -> None:
    text = encode_result(request_id, WriteResponse(status=WriteStatus.STDIN_CLOSED))
    assert text.endswith(b',"result":{"status":"stdinClosed"}}')
    assert list(simplejson.loads(text).items()) == [("id", request_id), ("result", {"status": "stdinClosed"})]
    reply = parse_reply(text)
    assert isinstance(reply, Response)
    assert (reply.id, bytes(reply.result)) == (request_id, b'{"status":"stdinClosed"}')


def test_a_result_may_be_json_text() -> None:
    assert encode_result(1, msgspec.Raw(b'{"x":1}')) == b'{"id":1,"result":{"x":1}}'


@pytest.mark.parametrize("request_id", [7, "é"])
def test_a_result_may_be_sent_in_pieces(request_id: int | str) -> None:
    before, behind = around_result(request_id)
    assert before + b'{"x":1}' + behind == encode_result(request_id, msgspec.Raw(b'{"x":1}'))


def test_an_error_is_written_before_its_id() -> None:
    assert encode_error("é", InvalidRequest('no "é"\n')) == (
        '{"error":{"code":-32600,"message":"no \\"é\\"\\n"},"id":"é"}'.encode()
    )


def test_an_error_may_quote_text_that_is_no_unicode() -> None:
    text = encode_error(-1, MethodNotFound("\udcff"))
    assert simplejson.loads(text)["error"]["message"] == "exec-server stub does not implement `?` yet"


@given(st.integers(-I64_MAX - 1, I64_MAX), st.text(st.characters(exclude_categories=["Cs"])), request_ids)
def test_errors_survive_the_way_to_the_client(code: int, message: str, request_id: int | str) -> None:
    error = InvalidRequest(message)
    error.code = code
    assert parse_reply(encode_error(request_id, error)) == ErrorMessage(ErrorBody(code, message), request_id)


def test_a_notification_holds_method_and_params() -> None:
    text = encode_notification("process/closed", ExecClosedNotification(process_id="p", seq=3))
    assert text == b'{"method":"process/closed","params":{"processId":"p","seq":3}}'
    assert isinstance(parse_reply(text), Notification)


def test_a_client_writes_requests_as_the_real_one_does() -> None:
    assert (
        encode_request(1, "environment/info", None) == b'{"id":1,"method":"environment/info","params":null}'
    )
    assert request(encode_request(2, "x", msgspec.Raw(b"{}"))) == Request(2, "x", msgspec.Raw(b"{}"))


def test_every_recorded_request_is_one() -> None:
    texts = [exchange.text for exchange in exchanges("13-decode-errors.0.142.0")]
    assert len(texts) > 80
    assert all(isinstance(parse_message(text), Request) for text in texts)


@pytest.mark.parametrize("request_id", [0, -(2**63), 2**63 - 1, "", 'a"\\\n\x00é\U0001f600'])
def test_json_text_is_answered_as_a_record_of_the_same_is(request_id: int | str) -> None:
    record = Trace(traceparent="a", tracestate="b")
    text = msgspec.Raw(b'{"traceparent":"a","tracestate":"b"}')
    assert encode_result(request_id, text) == encode_result(request_id, record)


def test_the_text_of_an_error_says_what_it_is() -> None:
    for error in (MethodNotFound("m"), InvalidRequest("no")):
        assert str(error) == error.message != ""
