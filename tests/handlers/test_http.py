"""`http/request` at the method table: checked in line, made beside the rest, the body behind the answer."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import cast

import gevent
import pytest
from msgspec import Raw

from execserver.handlers.context import Call
from execserver.handlers.http import request
from execserver.handlers.replies import Later, Reply
from execserver.protocol.errors import InternalError, InvalidParams
from tests.support.http_peer import Caller, answering, params, serving, silent
from tests.support.waiting import wait_until

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def call_of(caller: Caller) -> Call:
    return cast(Call, SimpleNamespace(connection=SimpleNamespace(http_streams=caller.streams)))


def test_checks_are_made_before_anything_is_put_off() -> None:
    with pytest.raises(InvalidParams, match="relative URL without a base"):
        request(call_of(Caller()), params("nope"))


def test_nothing_is_asked_until_the_answer_is_waited_for() -> None:
    with serving(answering(ANSWER)) as server:
        later = request(call_of(Caller()), params(server.url))
        assert isinstance(later, Later)
        assert server.requests == []
        result = later.run()
    assert isinstance(result, Raw)
    assert json.loads(bytes(result)) == {
        "status": 200,
        "headers": [{"name": "content-length", "value": "2"}],
        "bodyBase64": "b2s=",
    }


def test_a_streamed_body_starts_when_the_answer_is_queued() -> None:
    caller = Caller()
    with serving(answering(ANSWER)) as server:
        reply = request(call_of(caller), params(server.url, stream_response=True)).run()
        assert isinstance(reply, Reply)
        assert isinstance(reply.result, Raw)
        assert bytes(reply.result).endswith(b'"bodyBase64":""}')
        gevent.sleep(0)
        assert caller.sink.messages == []
        reply.then()
        wait_until(caller.sink.is_done, pause=gevent.sleep)
    assert [each["deltaBase64"] for each in caller.sink.deltas()] == ["b2s=", ""]


def test_an_id_is_taken_from_the_check_to_the_failure() -> None:
    caller = Caller()
    with serving(silent) as gone:
        url = gone.url
    later = request(call_of(caller), params(url, stream_response=True))
    with pytest.raises(InvalidParams, match="already active"):
        request(call_of(caller), params(url, stream_response=True))
    with pytest.raises(InternalError, match="error sending request"):
        later.run()
    request(call_of(caller), params(url, stream_response=True))
