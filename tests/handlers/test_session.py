from __future__ import annotations

from typing import Any

import pytest

from execserver.access.identity import NOBODY, Grant, Identity
from execserver.core.connection import ProtocolViolation
from execserver.handlers.replies import Reply
from tests.handlers.asking import Client, Server
from tests.services.fakes import FakeSpawner


def session_of(result: Any) -> str:
    assert isinstance(result, dict), result
    text = result["sessionId"]
    assert isinstance(text, str)
    return text


def spawner_of(client: Client) -> FakeSpawner:
    return client.server.spawner


def start(client: Client, process_id: str = "p") -> Any:
    return client.ask("process/start", processId=process_id, argv=["x"], cwd="/", env={}, tty=False)


def test_initialize_opens_a_session_and_describes_the_machine(handlers_server: Server) -> None:
    client = Client(handlers_server, ready=False)
    result = client.ask("initialize", clientName="codex-core")
    assert next(iter(result)) == "sessionId"
    assert result["environmentInfo"]["shell"]["path"] == "/bin/sh"
    assert client.call.session.session_id == session_of(result)
    assert client.connection.client_name == "codex-core"


def test_a_session_is_its_openers_and_unknown_to_others(handlers_server: Server) -> None:
    ada = Client(handlers_server, ready=False)
    ada.connection.identity = Identity("jwt", "ada", Grant(read_only=True))
    opened = session_of(ada.ask("initialize", clientName="x"))
    assert ada.call.session.identity is ada.connection.identity
    ada.leave()
    for other in (NOBODY, Identity("jwt", "eve", Grant(read_only=True)), Identity("jwt", "ada", Grant())):
        client = Client(handlers_server, ready=False)
        client.connection.identity = other
        refused = client.ask("initialize", clientName="x", resumeSessionId=opened)
        assert refused == (-32600, f"unknown session id {opened}")
    again = Client(handlers_server, ready=False)
    again.connection.identity = Identity("jwt", "ada", Grant(read_only=True))
    assert session_of(again.ask("initialize", clientName="x", resumeSessionId=opened)) == opened


def test_the_log_names_who_opened_a_session(
    handlers_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(handlers_server, ready=False)
    client.connection.identity = Identity("jwt", "ada")
    with caplog.at_level("INFO", "execserver"):
        session_id = session_of(client.ask("initialize", clientName="a\nb" + "x" * 1000))
    (line,) = [record.getMessage() for record in caplog.records if "session opened" in record.getMessage()]
    assert line.endswith(" way=jwt name='ada'")
    assert f"session={session_id[:8]} client='a\\nb" in line
    assert session_id not in line
    assert len(line) < 200


def test_the_answer_leaves_before_the_log_is_written(
    handlers_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(handlers_server, ready=False)
    with caplog.at_level("INFO", "execserver"):
        reply = client.answer("initialize", {"clientName": "x"})
        assert isinstance(reply, Reply)
        assert reply.leaves_first
        released = []
        client.sink.release = lambda: released.append(len(caplog.records))  # type: ignore[method-assign]
        reply.then()
    assert released == [0]
    assert len(caplog.records) == 1


def test_initialize_may_succeed_only_once(asking: Client) -> None:
    refusal = (-32600, "initialize may only be sent once per connection")
    assert asking.ask("initialize", clientName="x") == refusal
    assert asking.ask("initialize", clientName="x", resumeSessionId="y") == refusal
    assert len(asking.server.sessions) == 1


def test_a_failed_initialize_may_be_repeated(handlers_server: Server) -> None:
    other = Client(handlers_server)
    attached = other.call.session.session_id
    client = Client(handlers_server, ready=False)
    for params, refusal in [
        ({}, (-32602, "missing field `clientName`")),
        ({"clientName": "x", "resumeSessionId": "no"}, (-32600, "unknown session id no")),
        (
            {"clientName": "x", "resumeSessionId": attached},
            (-32010, f"session {attached} is already attached to another connection"),
        ),
    ]:
        assert client.ask("initialize", **params) == refusal
        with pytest.raises(ProtocolViolation):
            client.connection.rules.notification("initialized")
    session_of(client.ask("initialize", clientName="x"))


def test_a_session_is_resumed_under_its_id(asking: Client) -> None:
    start(asking)
    session_id = asking.call.session.session_id
    asking.leave()
    back = Client(asking.server, ready=False)
    assert session_of(back.ask("initialize", clientName="x", resumeSessionId=session_id)) == session_id
    back.connection.rules.notification("initialized")
    assert back.ask("process/read", processId="p")["nextSeq"] == 1


def test_notifications_flow_to_the_new_client_before_initialized(asking: Client) -> None:
    start(asking)
    session_id = asking.call.session.session_id
    asking.leave()
    (run,) = spawner_of(asking).runs
    run.write("stdout", b"missed")
    back = Client(asking.server, ready=False)
    back.ask("initialize", clientName="x", resumeSessionId=session_id)
    run.write("stdout", b"heard")
    assert [message["params"]["seq"] for message in back.heard()] == [2]
    assert asking.heard() == []


def test_the_answer_comes_before_the_first_notification(asking: Client) -> None:
    session_id = asking.call.session.session_id
    start(asking)
    asking.leave()
    back = Client(asking.server, ready=False)
    answer = back.answer("initialize", {"clientName": "x", "resumeSessionId": session_id})
    spawner_of(asking).runs[0].write("stdout", b"between")
    assert back.heard() == []
    answer.then()  # type: ignore[union-attr]
    spawner_of(asking).runs[0].write("stdout", b"behind")
    assert [message["params"]["seq"] for message in back.heard()] == [2]


def test_a_client_lets_go_of_its_session_once(asking: Client) -> None:
    session_id = asking.call.session.session_id
    asking.call.detach()
    asking.call.detach()
    back = Client(asking.server, ready=False)
    back.ask("initialize", clientName="x", resumeSessionId=session_id)
    asking.call.detach()
    third = Client(asking.server, ready=False)
    assert third.ask("initialize", clientName="x", resumeSessionId=session_id)[0] == -32010


def test_requests_that_came_before_the_end_still_reach_the_session(asking: Client) -> None:
    start(asking)
    asking.call.detach()
    assert asking.ask("process/terminate", processId="p") == {"running": True}
    assert spawner_of(asking).runs[0].signals == [9]


def test_a_client_without_session_has_nothing_to_let_go(handlers_server: Server) -> None:
    Client(handlers_server, ready=False).leave()
    assert len(handlers_server.sessions) == 0
