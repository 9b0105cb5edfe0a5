from __future__ import annotations

import json

import gevent
import pytest

from execserver.handlers.replies import InParts, Reply, Result
from execserver.protocol.own_methods import PORT_ACK, PORT_DATA
from execserver.transports.inbox import INBOX_BYTES, REPLY_BYTES
from tests.support.greenlets import turns
from tests.transports.scene import Gate, Play, at_once, ids, result, scene


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


def test_a_reply_that_leaves_first_is_written_before_what_follows(play: Play) -> None:
    def handler(params: object) -> Reply:
        return Reply(result(params), lambda: written.append(len(one.answers())), leaves_first=True)

    for handle in (at_once(handler), lambda params: handler(params)):
        written: list[int] = []
        one = play(write=handle)
        one.ask("write")
        assert written == [1]


def test_a_reply_that_leaves_first_is_written_with_those_of_a_burst(play: Play) -> None:
    def handler(_params: object) -> Reply:
        return Reply(result(), lambda: written.append(len(one.answers())), leaves_first=True)

    written: list[int] = []
    one = play(write=at_once(handler))
    one.ask("write", None, "write", "write")
    assert written == [0, 0, 3]


def test_what_is_no_message_is_answered_with_id_minus_one(play: Play) -> None:
    one = play(echo=result)
    one.receive(b"{", b'{"id":1,"method":"echo"}')
    malformed, echoed = one.answers()
    reason = "cannot read: EOF while parsing an object at line 1 column 1"
    assert malformed == {"error": {"code": -32600, "message": reason}, "id": -1}
    assert echoed["id"] == 1


@pytest.mark.parametrize("at_a_time", [0, 4])
def test_an_acknowledgment_makes_no_haste_and_every_other_request_does(
    monkeypatch: pytest.MonkeyPatch, at_a_time: int
) -> None:
    for handler in (at_once(lambda _: result()), lambda _: result()):
        with scene(monkeypatch, at_a_time, **{PORT_ACK.name: handler, PORT_DATA.name: handler}) as one:
            asked: list[str] = []
            monkeypatch.setattr(one.outbox, "asked", lambda asked=asked: asked.append("asked"))
            one.ask(PORT_ACK.name)
            assert asked == []
            one.ask(PORT_ACK.name, None, PORT_DATA.name, PORT_ACK.name)
            assert (asked, len(one.answers())) == (["asked"], 4)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b'{"method":"echo"}', "unexpected notification `echo`"),
        (b'{"method":"initialized"}', "`initialized` was sent before `initialize` succeeded"),
        (b'{"id":1,"result":{}}', "a response that answers no request of the server"),
        (b'{"id":1,"error":{"code":1,"message":""}}', "a response that answers no request of the server"),
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
    one.receive(padded(INBOX_BYTES - 100))
    assert one.events == []
    one.receive(padded(100))
    assert one.events == ["pause"]
    gate.let_go()
    assert one.events == ["pause", "resume"]
    assert len(one.answers()) == 3


def test_messages_without_text_count_as_well(play: Play) -> None:
    gate = Gate()
    one = play(block=gate.wait)
    one.ask("block")
    for _ in range(INBOX_BYTES // 32):
        one.receive(b"")
    assert one.events == ["pause"]
    gate.let_go()


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
    assert not one.over.is_set()
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
    assert not one.over.is_set()
    one.end()
    assert one.finished()
    assert one.ends == ["detach", "context closed"]
