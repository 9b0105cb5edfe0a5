from __future__ import annotations

import errno
import json
from collections.abc import Iterator

import pytest

from execserver.handlers.replies import Later, Reply, Result, Streamed
from execserver.protocol.errors import InternalError, InvalidRequest
from execserver.transports import connection as connection_module
from execserver.transports.connection import MAX_WAITING
from tests.support.greenlets import turns
from tests.transports.scene import Gate, Play, ids, result


def test_an_answer_that_waits_delays_nobody(play: Play) -> None:
    gate = Gate()
    one = play(wait=gate.later, echo=result)
    one.ask("wait", "waited", "echo")
    assert ids(one.answers()) == [2]
    gate.let_go()
    assert one.answers() == [{"id": 1, "result": "waited"}]


def test_an_answer_that_waits_may_be_followed_by_something(play: Play) -> None:
    def late(_params: object) -> Later:
        return Later(lambda: Reply(result("late"), lambda: one.outbox.send(b'{"method":"delta"}')))

    one = play(late=late)
    one.ask("late")
    assert one.answers() == [{"id": 1, "result": "late"}, {"method": "delta"}]


@pytest.mark.parametrize(
    ("failure", "code"),
    [(InvalidRequest("no"), -32600), (FileNotFoundError(errno.ENOENT, "x"), -32004), (KeyError("x"), -32603)],
)
def test_failures_are_answers_at_once_and_later(
    play: Play, failure: Exception, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_params: object = None) -> Result:
        raise failure

    one = play(now=fail, later=lambda _: Later(fail), echo=result)
    one.ask("now", None, "later", "echo")
    messages = {message["id"]: message for message in one.answers()}
    assert [messages[number]["error"]["code"] for number in (1, 2)] == [code, code]
    assert messages[3] == {"id": 3, "result": None}
    logged = [record.getMessage() for record in caplog.records]
    assert logged == (["now failed", "later failed"] if code == -32603 else [])


def test_at_the_bound_of_waiting_answers_a_further_one_waits_in_line(play: Play) -> None:
    gate = Gate()
    one = play(wait=gate.later, echo=result)
    one.ask("wait", None, *["wait"] * (MAX_WAITING - 1), "echo")
    assert ids(one.answers()) == [MAX_WAITING + 1]
    one.ask("wait", None, "echo")
    assert gate.entered == MAX_WAITING + 1
    assert one.answers() == []
    gate.let_go()
    assert sorted(ids(one.wait_for(MAX_WAITING + 2))) == [
        *range(1, MAX_WAITING + 1),
        MAX_WAITING + 2,
        MAX_WAITING + 3,
    ]
    one.ask("wait", None, "echo")
    assert ids(one.answers()) == [MAX_WAITING + 5, MAX_WAITING + 4]  # there is room again


def test_large_requests_reach_that_bound_sooner(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "WAITING_BYTES", 1000)
    gate = Gate()
    one = play(wait=gate.later, echo=result)
    one.ask("wait", "x" * 1000, "echo")
    assert ids(one.answers()) == [2]
    one.ask("wait", None, "echo")
    assert one.answers() == []
    gate.let_go()
    assert sorted(ids(one.wait_for(3))) == [1, 3, 4]
    other = Gate()
    one.call.handlers["wait"] = other.later
    one.ask("wait", "x" * 500, "wait", "echo")  # there is room again
    assert ids(one.answers()) == [7]
    other.let_go()


def test_waiting_begins_in_the_order_of_the_requests_even_at_the_bound(play: Play) -> None:
    began: list[int] = []

    def begin(number: int) -> Later:
        def run() -> Result:
            began.append(number)
            return gate.wait()

        return Later(run)

    gate = Gate()
    one = play(wait=begin)
    requests = [{"id": number, "method": "wait", "params": number} for number in range(MAX_WAITING + 1)]
    one.receive(*(json.dumps(request).encode() for request in requests))
    assert began == list(range(MAX_WAITING + 1))
    gate.let_go()
    one.wait_for(MAX_WAITING + 1)


def test_a_wait_in_line_ends_with_the_client(play: Play) -> None:
    gate = Gate()
    one = play(wait=gate.later)
    one.ask("wait", None, *["wait"] * (MAX_WAITING + 5))
    assert gate.entered == MAX_WAITING + 1
    one.end()
    assert one.finished()
    assert one.ends[-1] == "context closed"


def test_waiting_answers_are_given_up_at_the_end(play: Play) -> None:
    ended: list[str] = []

    def wait(_params: object) -> Later:
        def run() -> Result:
            try:
                return gate.wait()
            finally:
                ended.append("given up")

        return Later(run)

    gate = Gate()
    one = play(wait=wait)
    one.ask("wait", None, "wait")
    one.end()
    assert ended == ["given up"] * 2
    assert one.finished()
    assert one.answers() == []


def test_nothing_waits_that_was_asked_before_the_end_and_handled_after_it(play: Play) -> None:
    gate, began = Gate(), Gate()
    one = play(block=gate.wait, wait=began.later)
    one.ask("block", None, "wait")
    one.end()
    gate.let_go()
    assert one.finished()
    assert began.entered == 0


def test_a_result_in_pieces_is_one_message_that_holds_the_order(play: Play) -> None:
    one = play(list=lambda _: Streamed(iter([b"[1", b",2", b"]"])), echo=result)
    one.ask("list", None, "echo")
    assert one.wait_for(2) == [{"id": 1, "result": [1, 2]}, {"id": 2, "result": None}]


def test_a_failure_before_the_first_piece_is_an_answer(play: Play) -> None:
    def piece(_number: int) -> bytes:
        raise NotADirectoryError(errno.ENOTDIR, "x")

    one = play(list=lambda _: Streamed(map(piece, range(2))), echo=result)
    one.ask("list", None, "echo")
    first, second = one.wait_for(2)
    assert first == {"error": {"code": -32603, "message": "Not a directory (os error 20)"}, "id": 1}
    assert second["id"] == 2
    assert one.events == []


@pytest.mark.parametrize("failure", [OSError(errno.EIO, "x"), InternalError("the file changed"), KeyError()])
def test_a_failure_between_pieces_ends_the_connection(play: Play, failure: Exception) -> None:
    def pieces() -> Iterator[bytes]:
        yield b'"half'
        raise failure

    one = play(read=lambda _: Streamed(pieces()), echo=result)
    one.ask("read", None, "echo")
    assert one.finished()
    assert one.events == ["close 1011 internal error"]
    assert one.ends == ["detach", "context closed"]
    one.outbox.flush()
    assert one.answers() == []
    assert one._received == b'{"id":1,"result":'


def test_the_end_of_the_client_ends_an_answer_in_pieces(play: Play) -> None:
    closed: list[str] = []

    def pieces() -> Iterator[bytes]:
        try:
            while True:
                yield b"x" * 200_000
        finally:
            closed.append("closed")

    one = play(read=lambda _: Streamed(pieces()))
    one.ask("read")
    turns(10)
    assert not one.over.is_set()
    one.outbox.close()
    one.end()
    assert one.finished()
    assert closed == ["closed"]
