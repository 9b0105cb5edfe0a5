"""The life of a session: initialize, loss, resuming, end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent
import pytest

from execserver.client import (
    ConnectFailed,
    ConnectTimeout,
    ExecServerClient,
    ExecServerError,
    InvalidRequestError,
    ProtocolViolation,
    ResumeFailed,
    SessionBusyError,
    SessionState,
    TransportClosed,
    WaitTimeout,
)
from tests.client.conftest import QUICK
from tests.client.fake_server import SESSION, FakeServer, Refusal, Unanswered
from tests.support.waiting import wait_until


def never(params: object) -> object:
    raise Unanswered


def settled(client: ExecServerClient, state: SessionState) -> None:
    wait_until(lambda: client.state is state, pause=gevent.sleep)


def capture(client: ExecServerClient, method: str) -> ExecServerError | None:
    """Return the error a call ends with."""
    try:
        client.call(method)
    except ExecServerError as error:
        return error
    return None


def test_a_session_begins_with_initialize_and_initialized(client: ExecServerClient, fake: FakeServer) -> None:
    assert [request.method for request in fake.requests] == ["initialize", "initialized"]
    assert fake.requests[0].params == {"clientName": "execserver-python", "resumeSessionId": None}
    assert fake.requests[1].call_id is None
    assert client.session_id == SESSION
    assert client.state is SessionState.OPEN


def test_what_the_server_says_about_itself_is_kept(fake: FakeServer) -> None:
    fake.answers["initialize"] = lambda params: {
        "sessionId": SESSION,
        "environmentInfo": {
            "shell": {"name": "sh", "path": "/bin/sh"},
            "newerThanWeKnow": 1,
            "execserver": {"processResize": True},
        },
    }
    with ExecServerClient(fake.open_transport, QUICK) as client:
        assert client.server_info is not None
        assert client.server_info.shell.name == "sh"
        assert client.extensions.process_resize
        assert not client.extensions.process_list


def test_a_server_that_refuses_is_reported_and_its_connection_closed(fake: FakeServer) -> None:
    def refuse(params: object) -> object:
        raise Refusal(-32600, "unknown session id x")

    fake.answers["initialize"] = refuse
    with pytest.raises(InvalidRequestError, match="unknown session id x"):
        ExecServerClient(fake.open_transport, QUICK)
    assert fake.current.closed


def test_a_server_that_does_not_answer_initialize_is_given_up(fake: FakeServer) -> None:
    fake.answers["initialize"] = never
    with pytest.raises(ConnectTimeout, match=r"initialize was not answered within 0\.01 s"):
        ExecServerClient(fake.open_transport, QUICK.replace(initialize_timeout=0.01))
    assert fake.current.closed


def test_a_server_without_session_id_is_no_server(fake: FakeServer) -> None:
    fake.answers["initialize"] = lambda params: {}
    with pytest.raises(ProtocolViolation, match="sessionId"):
        ExecServerClient(fake.open_transport, QUICK)
    assert fake.current.closed


def test_an_unreachable_server_is_reported(fake: FakeServer) -> None:
    fake.unreachable = True
    with pytest.raises(ConnectFailed):
        ExecServerClient(fake.open_transport, QUICK)


def test_a_session_given_by_its_id_is_asked_for_until_it_is_free(fake: FakeServer) -> None:
    fake.answers["initialize"] = busy_for(2)
    options = QUICK.replace(resume_session_id="abc")
    with ExecServerClient(fake.open_transport, options) as client:
        assert client.session_id == "abc"
    asked = fake.asked("initialize")
    assert [request.params["resumeSessionId"] for request in asked] == ["abc"] * 3
    assert [transport.closed for transport in fake.carriers] == [True] * 3


def test_a_session_that_does_not_become_free_is_reported(fake: FakeServer) -> None:
    fake.answers["initialize"] = busy_for(1000)
    options = QUICK.replace(resume_session_id="abc", resume_window=0.02)
    with pytest.raises(SessionBusyError):
        ExecServerClient(fake.open_transport, options)


def busy_for(refusals: int) -> Callable[[Any], object]:
    """Return an `initialize` that says so many times that the session is attached."""
    left = [refusals]

    def initialize(params: dict[str, str]) -> object:
        if params["resumeSessionId"] is not None and left[0]:
            left[0] -= 1
            raise Refusal(-32010, "session is already attached to another connection")
        return {"sessionId": params["resumeSessionId"] or SESSION}

    return initialize


class TestAfterALoss:
    def test_the_session_is_resumed_on_a_new_connection(
        self, client: ExecServerClient, fake: FakeServer
    ) -> None:
        fake.current.drop()
        fake.wait_for("initialized", 2)
        settled(client, SessionState.OPEN)
        assert fake.asked("initialize")[1].params["resumeSessionId"] == SESSION
        assert client.resumptions == 1
        assert fake.carriers[0].closed

    def test_a_server_that_still_sees_the_old_connection_is_asked_again(
        self, client: ExecServerClient, fake: FakeServer
    ) -> None:
        fake.answers["initialize"] = busy_for(3)
        fake.current.drop()
        fake.wait_for("initialize", 5)
        settled(client, SessionState.OPEN)

    def test_an_unreachable_server_is_tried_again(self, client: ExecServerClient, fake: FakeServer) -> None:
        fake.unreachable = True
        fake.current.drop()
        settled(client, SessionState.RESUMING)
        gevent.sleep(0.01)
        fake.unreachable = False
        settled(client, SessionState.OPEN)

    def test_a_connection_lost_during_initialize_is_tried_again(
        self, client: ExecServerClient, fake: FakeServer
    ) -> None:
        fake.answers["initialize"] = never
        fake.current.drop()
        fake.wait_for("initialize", 2)
        fake.answers["initialize"] = lambda params: {"sessionId": SESSION}
        fake.current.drop()
        fake.wait_for("initialize", 3)
        settled(client, SessionState.OPEN)

    def test_a_call_in_flight_fails_and_later_ones_succeed(
        self, client: ExecServerClient, fake: FakeServer
    ) -> None:
        caller = gevent.spawn(capture, client, "environment/info")
        fake.wait_for("environment/info")
        fake.current.drop()
        assert type(caller.get(timeout=20)) is TransportClosed
        fake.answers["environment/info"] = lambda params: {"ok": True}
        assert client.call("environment/info") == {"ok": True}
        assert [request.connection for request in fake.asked("environment/info")] == [0, 1]

    def test_a_call_made_meanwhile_waits_for_the_new_connection(
        self, client: ExecServerClient, fake: FakeServer
    ) -> None:
        fake.answers["m"] = lambda params: 5
        fake.unreachable = True
        fake.current.drop()
        settled(client, SessionState.RESUMING)
        caller = gevent.spawn(client.call, "m")
        gevent.sleep(0.01)
        assert not caller.ready()
        fake.unreachable = False
        assert caller.get(timeout=20) == 5

    def test_a_call_with_a_time_does_not_wait_longer(
        self, client: ExecServerClient, fake: FakeServer
    ) -> None:
        fake.unreachable = True
        fake.current.drop()
        settled(client, SessionState.RESUMING)
        with pytest.raises(WaitTimeout):
            client.call("m", timeout=0.01)

    def test_any_other_refusal_is_final(self, client: ExecServerClient, fake: FakeServer) -> None:
        def refuse(params: object) -> object:
            raise Refusal(-32600, "unknown session id")

        fake.answers["initialize"] = refuse
        fake.current.drop()
        settled(client, SessionState.ENDED)
        with pytest.raises(ResumeFailed, match="unknown session id"):
            client.call("m")
        assert len(fake.asked("initialize")) == 2

    def test_another_session_than_the_lost_one_is_not_taken(
        self, client: ExecServerClient, fake: FakeServer
    ) -> None:
        fake.answers["initialize"] = lambda params: {"sessionId": "other"}
        fake.current.drop()
        settled(client, SessionState.ENDED)
        with pytest.raises(ResumeFailed, match="got other"):
            client.call("m")

    def test_the_window_ends(self, fake: FakeServer) -> None:
        client = ExecServerClient(fake.open_transport, QUICK.replace(resume_window=0.5))
        waiting = gevent.spawn(capture, client, "m")
        fake.wait_for("m")
        fake.unreachable = True
        fake.current.drop()
        assert type(waiting.get(timeout=20)) is TransportClosed
        meanwhile = gevent.spawn(capture, client, "m")
        assert type(meanwhile.get(timeout=20)) is ResumeFailed
        assert client.state is SessionState.ENDED
        with pytest.raises(ResumeFailed, match=r"not resumed within 0\.5 s: the fake is unreachable"):
            client.call("m")

    def test_a_carrier_without_a_way_back_is_not_resumed(self, fake: FakeServer) -> None:
        client = ExecServerClient(fake.open_transport, QUICK, can_resume=False)
        fake.current.drop()
        settled(client, SessionState.ENDED)
        with pytest.raises(TransportClosed, match="the server ended the connection"):
            client.call("m")
        assert len(fake.carriers) == 1

    def test_a_server_that_talks_nonsense_does_not_make_the_client_spin(self, fake: FakeServer) -> None:
        client = ExecServerClient(fake.open_transport, QUICK.replace(resume_interval=0.05))

        def talk_nonsense(params: dict[str, str]) -> object:
            fake.current.put("nonsense")
            return {"sessionId": SESSION}

        fake.current.put("nonsense")
        fake.answers["initialize"] = talk_nonsense
        gevent.sleep(0.2)
        client.close()
        assert len(fake.carriers) < 8

    def test_a_request_that_ends_every_connection_is_given_up(
        self, client: ExecServerClient, fake: FakeServer
    ) -> None:
        def drop(params: object) -> object:
            fake.current.drop()
            raise Unanswered

        fake.answers["process/write"] = drop
        process = client.start(["cat"], pipe_stdin=True, collect_output=False)
        with pytest.raises(TransportClosed):
            process.write(b"poison")
        assert len(fake.asked("process/write")) == 21


class TestTheEnd:
    def test_a_closed_client_refuses_calls(self, client: ExecServerClient, fake: FakeServer) -> None:
        client.close()
        assert fake.current.closed
        with pytest.raises(TransportClosed, match="this client was closed"):
            client.call("m")
        client.close()

    def test_closing_ends_calls_in_flight(self, client: ExecServerClient, fake: FakeServer) -> None:
        caller = gevent.spawn(capture, client, "m")
        fake.wait_for("m")
        client.close()
        assert type(caller.get(timeout=20)) is TransportClosed

    def test_closing_while_resuming_ends_the_attempts(
        self, client: ExecServerClient, fake: FakeServer
    ) -> None:
        fake.unreachable = True
        fake.current.drop()
        settled(client, SessionState.RESUMING)
        client.close()
        fake.unreachable = False
        gevent.sleep(0.01)
        assert len(fake.carriers) == 1

    def test_leaving_the_block_kills_running_processes(self, fake: FakeServer) -> None:
        with ExecServerClient(fake.open_transport, QUICK) as client:
            process = client.start(["sleep", "1000"])
        assert [request.params for request in fake.asked("process/terminate")] == [
            {"processId": process.process_id}
        ]

    def test_detaching_leaves_them(self, fake: FakeServer) -> None:
        client = ExecServerClient(fake.open_transport, QUICK)
        client.start(["sleep", "1000"])
        client.detach()
        assert fake.asked("process/terminate") == []
        assert fake.current.closed
