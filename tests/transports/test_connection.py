from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gevent
import pytest
from gevent.event import Event

from execserver.handlers.replies import InParts, Later, Reply, Result, Streamed
from execserver.protocol.errors import InternalError, InvalidRequest
from execserver.transports.connection import INBOX_BYTES, MAX_WAITING, REPLY_BYTES
from tests.support.greenlets import turns
from tests.transports.scene import Handler, Scene, result, scene

Play = Callable[..., Scene]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    """Start a connection with scripted handlers; it is ended after the test."""
    open_scenes = []

    def start(**handlers: Handler) -> Scene:
        opened = scene(monkeypatch, **handlers)
        open_scenes.append(opened)
        return opened.__enter__()

    yield start
    for opened in open_scenes:
        opened.__exit__(None, None, None)


class Gate:
    """A handler that blocks until it is let go."""

    def __init__(self) -> None:
        self._open = Event()
        self.entered = 0

    def wait(self, params: object = None) -> Result:
        self.entered += 1
        self._open.wait()
        return result(params)

    def later(self, params: object) -> Later:
        return Later(partial(self.wait, params))

    def let_go(self) -> None:
        self._open.set()
        turns()


def ids(messages: list[Any]) -> list[int]:
    return [message["id"] for message in messages]


def test_requests_are_answered_in_order(play: Play) -> None:
    one = play(echo=result)
    for number in range(3):
        one.ask("echo", number)
    assert one.answers() == [{"id": number + 1, "result": number} for number in range(3)]


def test_a_burst_is_answered_whole_and_in_order(play: Play) -> None:
    one = play(echo=result)
    one.ask("echo", None, *["echo"] * 4095)
    assert ids(one.wait_for(4096)) == list(range(1, 4097))


def test_others_get_turns_during_a_burst(play: Play) -> None:
    order: list[object] = []

    def note(_params: object) -> Result:
        order.append("request")
        return result()

    one = play(note=note)
    gevent.spawn(order.append, "other")
    one.ask("note", None, *["note"] * 199)
    assert len(order) == 201
    assert order.index("other") < 100


def test_what_arrives_outside_the_event_loop_is_handled_too(play: Play) -> None:
    one = play(echo=result)
    one.connection.receive([b'{"id":"early","method":"echo"}'])
    turns()
    assert one.answers() == [{"id": "early", "result": None}]


def test_ids_are_echoed_as_sent(play: Play) -> None:
    one = play(echo=result)
    one.receive(b'{"id":"","method":"echo"}', b'{"id":-9223372036854775808,"method":"echo"}')
    assert ids(one.answers()) == ["", -(2**63)]


def test_a_result_in_parts_is_one_message(play: Play) -> None:
    one = play(parts=lambda _: InParts(b'{"a":', b'"x"', b"}"))
    one.ask("parts")
    assert one.answers() == [{"id": 1, "result": {"a": "x"}}]


def test_what_follows_a_reply_comes_behind_it(play: Play) -> None:
    one = play(start=lambda _: Reply(result("started"), lambda: one.outbox.send(b'{"method":"output"}')))
    one.ask("start")
    assert one.answers() == [{"id": 1, "result": "started"}, {"method": "output"}]


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
    assert not one.greenlet.ready()
    one.outbox.close()
    one.end()
    assert one.finished()
    assert closed == ["closed"]


def test_what_is_no_message_is_answered_with_id_minus_one(play: Play) -> None:
    one = play(echo=result)
    one.receive(b"{", b'{"id":1,"method":"echo"}')
    malformed, echoed = one.answers()
    reason = "cannot read: EOF while parsing an object at line 1 column 1"
    assert malformed == {"error": {"code": -32600, "message": reason}, "id": -1}
    assert echoed["id"] == 1


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b'{"method":"echo"}', "unexpected notification `echo`"),
        (b'{"method":"initialized"}', "`initialized` was sent before `initialize` succeeded"),
        (b'{"id":1,"result":{}}', "a server takes no responses"),
        (b'{"id":1,"error":{"code":1,"message":""}}', "a server takes no responses"),
        (b'{"id":1.5,"method":"echo"}', "unexpected notification `echo`"),
    ],
)
def test_a_violation_ends_the_connection(play: Play, message: bytes, reason: str) -> None:
    one = play(echo=result)
    one.receive(b'{"id":1,"method":"echo"}', message, b'{"id":2,"method":"echo"}')
    assert one.finished()
    assert ids(one.answers()) == [1]
    assert one.events == [f"close 1008 {reason}"]
    assert one.ends == ["detach", "context closed"]


def test_initialized_may_be_repeated(play: Play) -> None:
    one = play(echo=result)
    one.call.connection.rules.initialize_succeeded()
    one.receive(b'{"method":"initialized"}', b'{"method":"initialized","params":5}')
    one.ask("echo")
    assert ids(one.answers()) == [1]
    assert one.events == []


def test_the_session_is_let_go_at_once_while_a_handler_blocks(play: Play) -> None:
    gate = Gate()
    one = play(block=gate.wait)
    one.ask("block")
    assert one.ends == []
    one.end()
    assert one.ends == ["detach"]
    one.end()
    assert one.ends == ["detach"]
    gate.let_go()
    assert one.finished()


def test_what_came_before_the_end_is_handled(play: Play) -> None:
    handled: list[object] = []

    def note(params: object) -> Result:
        handled.append(params)
        return result()

    gate = Gate()
    one = play(block=gate.wait, note=note)
    one.ask("block")
    one.ask("note", "terminate")
    one.end()
    one.ask("note", "after the end")
    gate.let_go()
    assert one.finished()
    assert handled == ["terminate"]


def test_a_session_opened_after_the_end_is_let_go(play: Play) -> None:
    """By a request that came before it; it would be attached to nobody for ever."""
    gate = Gate()

    def initialize(_params: object) -> Result:
        one.call.holds_session = True
        one.ends.append("opened")
        return result()

    one = play(block=gate.wait, initialize=initialize)
    one.ask("block", None, "initialize")
    one.end()
    gate.let_go()
    assert one.finished()
    assert one.ends == ["detach", "opened", "detach", "context closed"]


def padded(size: int, method: str = "echo") -> bytes:
    """Return a request of that many bytes."""
    text = json.dumps({"id": 1, "method": method, "params": None}).encode()
    return text + b" " * (size - len(text))


def test_reading_stops_while_too_much_is_unhandled(play: Play) -> None:
    gate = Gate()
    one = play(block=gate.wait, echo=result)
    one.ask("block")
    one.receive(padded(INBOX_BYTES))
    assert one.events == []
    one.receive(padded(50))
    assert one.events == ["pause"]
    gate.let_go()
    assert one.events == ["pause", "resume"]
    assert len(one.answers()) == 3


def test_reading_goes_on_once_half_is_handled(play: Play) -> None:
    gates = [Gate() for _ in range(4)]
    one = play(**{f"block{number}": gate.wait for number, gate in enumerate(gates)})
    quarter = INBOX_BYTES // 4
    one.receive(*(padded(quarter + 1, f"block{number}") for number in range(4)))
    one.receive(padded(INBOX_BYTES // 2, "block0"))
    assert one.events == ["pause"]
    for gate in gates:
        assert one.events == ["pause"]
        gate.let_go()
    assert one.events == ["pause", "resume"]


def test_handling_stops_while_the_client_does_not_read(play: Play) -> None:
    handled: list[object] = []

    def large(params: object) -> Result:
        handled.append(params)
        return result("x" * 300_000)

    one = play(large=large)
    one.ask("large", None, *["large"] * 19)
    assert 4 <= len(handled) < 10
    assert one.outbox.queued < REPLY_BYTES + 400_000
    assert len(one.wait_for(20)) == 20
    assert len(handled) == 20


def test_a_client_that_goes_while_it_is_waited_for_ends_the_connection(play: Play) -> None:
    one = play(large=lambda _: result("x" * 300_000))
    one.ask("large", None, *["large"] * 19)
    assert not one.greenlet.ready()
    one.outbox.close()
    one.end()
    assert one.finished()


def test_a_failure_outside_of_a_request_ends_this_connection_only(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    one, other = play(echo=result, block=gate.wait), play(echo=result)
    one.transport.failing_resume = True
    one.ask("block")
    one.receive(padded(INBOX_BYTES), padded(100))
    gate.let_go()
    assert one.finished()
    assert one.events == ["pause", "resume", "close 1011 internal error"]
    assert [record.getMessage() for record in caplog.records] == ["a connection failed"]
    other.ask("echo")
    assert ids(other.answers()) == [1]


def test_a_connection_without_a_message_ends(play: Play) -> None:
    one = play()
    assert not one.greenlet.ready()
    one.end()
    assert one.finished()
    assert one.ends == ["detach", "context closed"]
