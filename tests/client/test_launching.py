"""A process that is started with the session, before the server has said anything."""

from __future__ import annotations

import gevent
import pytest

from execserver.client import (
    ExecServerClient,
    InternalError,
    RequestFailed,
    TransportClosed,
)
from execserver.client.rules.event_log import Output
from execserver.client.rules.starting import start_params
from execserver.protocol.process import ExecParams
from tests.client.conftest import QUICK
from tests.client.fake_server import SESSION, FakeServer, Refusal, end, say


def params() -> ExecParams:
    return start_params(
        ["cat"],
        cwd="/",
        env=None,
        env_policy=None,
        tty=False,
        pipe_stdin=True,
        arg0=None,
        sandbox=None,
        process_id="p",
        process_name=None,
    )


def connected(fake: FakeServer, **options: str) -> ExecServerClient:
    return ExecServerClient(fake.open_transport, QUICK.replace(**options), ahead=params)


def test_a_start_waits_for_no_answer_and_its_output_is_kept(fake: FakeServer) -> None:
    greet = fake.answers.pop("initialize")
    connecting = gevent.spawn(connected, fake)
    start = fake.wait_for("process/start")
    assert [one.method for one in fake.requests] == ["initialize", "initialized", "process/start"]
    fake.current.reply(fake.requests[0].call_id, greet({"resumeSessionId": None}))
    say(fake, 1, b"hello")
    client = connecting.get(timeout=20)
    assert client.session_id == SESSION
    process = client.started_ahead()
    assert process is not None
    assert process.process_id == start.params["processId"] == "p"
    assert process.next_event(timeout=20) == Output(1, "stdout", b"hello")
    assert client.started_ahead() is None
    end(fake, 2)
    assert process.wait(timeout=20) == 0
    client.close()
    assert fake.asked("process/terminate") == []


def test_a_process_that_nobody_takes_is_killed_at_the_end(fake: FakeServer) -> None:
    connected(fake).close()
    assert [one.params["processId"] for one in fake.asked("process/terminate")] == ["p"]


def test_a_session_that_is_refused_is_told_and_not_what_came_behind_it(fake: FakeServer) -> None:
    def refuse(asked: object) -> object:
        raise Refusal(-32603, "no session")

    fake.answers |= {"initialize": refuse, "process/start": refuse}
    with pytest.raises(RequestFailed, match="no session") as error:
        connected(fake)
    assert error.value.method == "initialize"
    assert fake.current.closed


@pytest.mark.parametrize("code", [-32600, -32602])
def test_a_start_that_is_not_understood_may_be_asked_for_otherwise(fake: FakeServer, code: int) -> None:
    def refuse(asked: object) -> object:
        raise Refusal(code, "what is that?")

    start = fake.answers["process/start"]
    fake.answers["process/start"] = refuse
    client = connected(fake)
    assert client.started_ahead() is None
    fake.answers["process/start"] = start
    assert client.start(["cat"], process_id="p").process_id == "p"
    client.close()


def test_a_program_that_cannot_be_started_is_told(fake: FakeServer) -> None:
    def refuse(asked: object) -> object:
        raise Refusal(-32603, "No such file or directory (os error 2)")

    fake.answers["process/start"] = refuse
    client = connected(fake)
    with pytest.raises(InternalError, match="os error 2"):
        client.started_ahead()
    client.close()
    assert fake.asked("process/terminate") == []


def test_a_start_whose_answer_is_lost_is_killed_on_the_next_connection(fake: FakeServer) -> None:
    del fake.answers["process/start"]
    client = connected(fake)
    fake.current.drop()
    with pytest.raises(TransportClosed):
        client.started_ahead()
    assert fake.wait_for("process/terminate").connection == 1
    client.close()


def test_a_connection_that_is_lost_before_any_answer_is_no_session(fake: FakeServer) -> None:
    del fake.answers["initialize"], fake.answers["process/start"]
    connecting = gevent.spawn(connected, fake)
    fake.wait_for("process/start")
    fake.current.drop()
    with pytest.raises(TransportClosed):
        connecting.get(timeout=20)
    assert len(fake.carriers) == 1


@pytest.mark.parametrize("option", ["resume_session_id", "resume_session_name"])
def test_nothing_is_started_ahead_in_a_session_of_before(fake: FakeServer, option: str) -> None:
    fake.answers["initialize"] = lambda asked: {"sessionId": SESSION}
    client = connected(fake, **{option: SESSION})
    assert client.started_ahead() is None
    assert fake.asked("process/start") == []
    client.close()
