"""Requests and their answers on one connection."""

from __future__ import annotations

from collections.abc import Iterator

import gevent
import msgspec
import pytest
from gevent.event import AsyncResult

from execserver.client.errors import (
    ExecServerError,
    InternalError,
    InvalidParamsError,
    InvalidRequestError,
    MethodNotFoundError,
    NotFoundError,
    ProtocolViolation,
    RequestFailed,
    SessionBusyError,
    TransportClosed,
    WaitTimeout,
)
from execserver.client.greenlets.connection import Connection
from execserver.client.greenlets.flow import Gate
from execserver.client.rules.event_log import Output
from execserver.protocol.lifting import JsonText
from tests.client.fake_server import FakeCarrier, FakeServer


class Owner:
    """What the owner of a connection hears."""

    def __init__(self) -> None:
        self.notifications: list[tuple[str, object]] = []
        self.lost: list[ExecServerError] = []

    def on_notification(self, method: str, params: JsonText) -> None:
        if method == "broken":
            raise ProtocolViolation("a broken notification")
        self.notifications.append((method, msgspec.json.decode(bytes(params))))

    def on_output(self, process_id: str, output: Output) -> None:
        self.notifications.append((process_id, output))

    def on_lost(self, connection: Connection, error: ExecServerError) -> None:
        self.lost.append(error)


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
def transport(fake: FakeServer) -> FakeCarrier:
    fake.answers.clear()
    return fake.open_transport(1)


@pytest.fixture
def connection(transport: FakeCarrier, owner: Owner) -> Iterator[Connection]:
    connection = Connection(
        transport, Gate(1000, 10_000), 3, owner.on_notification, owner.on_output, owner.on_lost
    )
    connection.start()
    yield connection
    connection.close()


def ask(connection: Connection, method: str) -> gevent.Greenlet[..., JsonText]:
    """Call in a greenlet of its own and let it run."""
    caller = gevent.spawn(connection.request, method, {})
    gevent.sleep(0)
    return caller


def outcome(caller: gevent.Greenlet[..., JsonText]) -> object:
    return msgspec.json.decode(bytes(caller.get(timeout=20)))


def test_answers_are_matched_by_id_whatever_their_order(
    connection: Connection, transport: FakeCarrier, fake: FakeServer
) -> None:
    callers = [ask(connection, f"m{number}") for number in range(3)]
    ids = [request.call_id for request in fake.requests]
    assert ids == [1, 2, 3]
    for call_id in reversed(ids):
        transport.reply(call_id, {"answer": call_id})
    assert [outcome(caller) for caller in callers] == [{"answer": 1}, {"answer": 2}, {"answer": 3}]


def test_notifications_reach_the_owner_in_arrival_order(
    connection: Connection, transport: FakeCarrier, owner: Owner
) -> None:
    caller = ask(connection, "m")
    transport.push("a", n=1)
    transport.put(
        '{"method":"process/output","params":{"processId":"p","seq":1,"stream":"pty","chunk":"eA=="}}'
    )
    transport.push("b", n=2)
    transport.reply(1, {})
    outcome(caller)
    assert owner.notifications == [("a", {"n": 1}), ("p", Output(1, "pty", b"x")), ("b", {"n": 2})]


def test_an_answer_to_nothing_asked_is_ignored(connection: Connection, transport: FakeCarrier) -> None:
    caller = ask(connection, "m")
    transport.reply(77, {"wrong": True})
    transport.put({"id": "1", "result": {"wrong": True}})
    transport.put({"error": {"code": -32600, "message": "wrong"}, "id": 78})
    transport.reply(1, {"right": True})
    assert outcome(caller) == {"right": True}


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (-32600, InvalidRequestError),
        (-32601, MethodNotFoundError),
        (-32602, InvalidParamsError),
        (-32603, InternalError),
        (-32004, NotFoundError),
        (-32010, SessionBusyError),
        (-1, RequestFailed),
    ],
)
def test_an_error_answer_becomes_the_error_of_its_code(
    connection: Connection, transport: FakeCarrier, code: int, kind: type[RequestFailed]
) -> None:
    caller = gevent.spawn(capture, connection, "m")
    gevent.sleep(0)
    transport.put({"error": {"code": code, "message": "why"}, "id": 1})
    error = caller.get(timeout=20)
    assert type(error) is kind
    assert (error.code, error.message, error.method) == (code, "why", "m")


def capture(connection: Connection, method: str, timeout: float | None = None) -> ExecServerError | None:
    """Return the error a call ends with."""
    try:
        connection.request(method, {}, timeout)
    except ExecServerError as error:
        return error
    return None


def test_an_error_without_id_ends_every_waiting_call(connection: Connection, transport: FakeCarrier) -> None:
    callers = [gevent.spawn(capture, connection, method) for method in ("a", "b")]
    gevent.sleep(0)
    transport.put({"error": {"code": -32600, "message": "failed to parse"}, "id": -1})
    assert [type(caller.get(timeout=20)) for caller in callers] == [InvalidRequestError] * 2


def test_the_end_of_the_connection_ends_every_waiting_call(
    connection: Connection, transport: FakeCarrier, owner: Owner
) -> None:
    callers = [gevent.spawn(capture, connection, method) for method in ("a", "b")]
    gevent.sleep(0)
    transport.drop()
    errors = [caller.get(timeout=20) for caller in callers]
    assert [type(error) for error in errors] == [TransportClosed] * 2
    assert errors[0] is not errors[1]
    assert len(owner.lost) == 1
    assert transport.closed


@pytest.mark.parametrize(
    "message",
    [
        "no JSON",
        "{}",
        '{"id":1}',
        '{"error":{"code":1},"id":1}',
        '{"id":5,"method":"server/asks","params":{}}',
        '{"method":"broken","params":{}}',
        '{"method":"process/output","params":{"processId":"p"}} trailing',
    ],
)
def test_what_the_contract_does_not_allow_ends_the_connection(
    connection: Connection, transport: FakeCarrier, owner: Owner, message: str
) -> None:
    caller = gevent.spawn(capture, connection, "m")
    gevent.sleep(0)
    transport.put(message)
    error = caller.get(timeout=20)
    assert type(error) is TransportClosed
    assert isinstance(error.__cause__, ProtocolViolation)
    assert owner.lost == [error.__cause__]


def test_a_call_on_a_lost_connection_fails_at_once(connection: Connection, transport: FakeCarrier) -> None:
    transport.drop()
    gevent.sleep(0.01)
    assert type(capture(connection, "m")) is TransportClosed


def test_a_send_that_fails_is_the_end_of_the_connection(
    connection: Connection, transport: FakeCarrier, owner: Owner
) -> None:
    transport.closed = True
    assert type(capture(connection, "m")) is TransportClosed
    assert len(owner.lost) == 1


def test_a_call_can_be_given_a_time_and_its_late_answer_is_ignored(
    connection: Connection, transport: FakeCarrier
) -> None:
    assert type(capture(connection, "slow", 0.01)) is WaitTimeout
    transport.reply(1, {"late": True})
    caller = ask(connection, "next")
    transport.reply(2, {"fine": True})
    assert outcome(caller) == {"fine": True}


def test_no_more_requests_are_in_flight_than_allowed(
    connection: Connection, transport: FakeCarrier, fake: FakeServer
) -> None:
    callers = [ask(connection, f"m{number}") for number in range(5)]
    assert [request.method for request in fake.requests] == ["m0", "m1", "m2"]
    for call_id in range(1, 6):
        transport.reply(call_id, call_id)
        gevent.sleep(0.001)
    assert [outcome(caller) for caller in callers] == [1, 2, 3, 4, 5]


def test_params_that_json_cannot_hold_are_refused_before_anything_is_sent(
    connection: Connection, fake: FakeServer
) -> None:
    fake.sends_at_once = True
    with pytest.raises(TypeError):
        connection.request("m", {"x": object()})
    for _ in range(4):  # more often than requests may be in flight
        with pytest.raises(TypeError):
            connection.send_at_once("m", {"x": object()}, AsyncResult())
    assert fake.requests == []
    assert connection.lost is None
    assert connection.send_at_once("m", {}, AsyncResult())
