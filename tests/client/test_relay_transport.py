"""The client through a relay: how it gets there, and what it survives."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import islice
from time import monotonic
from typing import Any

import gevent
import pytest

from execserver.client import (
    ConnectFailed,
    ExecServerClient,
    ExecServerClientConnectOptions,
    RegistryRefused,
    RemoteConfigurationError,
    RemoteExecServerConnectArgs,
    ResumeFailed,
    SessionState,
    TransportClosed,
)
from execserver.client.options import REMOTE_IN_FLIGHT
from execserver.client.relay.connector import RelayConnector
from execserver.client.relay.transport import RelayTransport
from tests.client.fake_executor import ENVIRONMENT, FakeExecutor
from tests.conftest import LONG
from tests.support.relay import Call, Relay, Reply
from tests.support.waiting import wait_until

OPTIONS = ExecServerClientConnectOptions(
    client_name="codex-environment", resume_window=30.0, close_timeout=0.2
)


@pytest.fixture
def relay() -> Iterator[Relay]:
    with Relay() as relay:
        yield relay


@pytest.fixture(params=["plain", "reliable"])
def executor(relay: Relay, request: pytest.FixtureRequest) -> Iterator[FakeExecutor]:
    with FakeExecutor(relay.url, reliable=request.param == "reliable") as executor:
        yield executor


@pytest.fixture
def reliable(relay: Relay) -> Iterator[FakeExecutor]:
    with FakeExecutor(relay.url, reliable=True) as executor:
        yield executor


@pytest.fixture
def plain(relay: Relay) -> Iterator[FakeExecutor]:
    with FakeExecutor(relay.url, reliable=False) as executor:
        yield executor


def args(relay: Relay, **changes: Any) -> RemoteExecServerConnectArgs:
    plain = RemoteExecServerConnectArgs(
        url=relay.url, environment_id=ENVIRONMENT, token="token", options=OPTIONS
    )
    return plain.replace(**changes)


def until(condition: Any) -> None:
    wait_until(condition, pause=gevent.sleep)


def test_a_client_calls_through_the_relay(relay: Relay, executor: FakeExecutor) -> None:
    with ExecServerClient.connect_remote(args(relay, url=f"  {relay.url}// ", account_id="acct-1")) as client:
        assert client.session_id == "session-1"
        assert client.call("echo", {"a": 1}) == {"a": 1}
        large = {"text": "x" * 300_000}
        assert client.call("echo", large) == large
    (call,) = relay.asked("connect")
    assert call.path == f"/cloud/environment/{ENVIRONMENT}/connect"
    assert call.headers["authorization"] == "Bearer token"
    assert call.headers["chatgpt-account-id"] == "acct-1"
    assert call.body is not None
    assert list(call.body) == ["harness_public_key"]
    assert executor.authorizations == [b"let-me-in"]
    offered = {"clientName": "codex-environment", "resumeSessionId": None, "relayReliability": 1}
    assert executor.asked[:2] == [("initialize", offered), ("initialized", {})]


def test_without_an_account_no_such_header_is_sent(relay: Relay, plain: FakeExecutor) -> None:
    ExecServerClient.connect_remote(args(relay)).close()
    assert "chatgpt-account-id" not in relay.asked("connect")[0].headers


def test_a_reliable_executor_is_told_that_the_client_goes(relay: Relay, reliable: FakeExecutor) -> None:
    ExecServerClient.connect_remote(args(relay)).close()
    until(lambda: [entry.split()[1] for entry in reliable.resets][:1] == ["closed"])


def test_a_stream_is_reported_as_ended_once_however_often_it_is_closed(
    relay: Relay, reliable: FakeExecutor
) -> None:
    connector = RelayConnector(args(relay))
    transport = talking(connector)
    transport.close()
    transport.close()
    until(lambda: [entry.split()[1] for entry in reliable.resets][:1] == ["closed"])
    assert list(connector.access.farewells()) == []  # the stream has told it already

    lost = talking(connector)
    relay.harnesses[-1].drop()
    until(lambda: lost._socket is None)
    lost.close()
    assert len(list(connector.access.farewells())) == 1
    lost.close()
    assert list(connector.access.farewells()) == []


def talking(connector: RelayConnector) -> RelayTransport:
    """Return a transport that has had an answer."""
    transport = RelayTransport.connect(connector, 10)
    transport.send(b'{"id": 1, "method": "initialize", "params": {}}')
    assert transport.receive() is not None
    return transport


def test_calls_in_flight_survive_a_lost_websocket(relay: Relay, reliable: FakeExecutor) -> None:
    with ExecServerClient.connect_remote(args(relay)) as client:

        def slow(params: object) -> object:
            gevent.sleep(0.1)
            return params

        reliable.answers["slow"] = slow
        calls = [gevent.spawn(client.call, "slow", {"n": number}) for number in range(5)]
        until(lambda: ("slow", {"n": 0}) in reliable.asked)
        relay.harnesses[-1].drop()
        gevent.joinall(calls, timeout=20, raise_error=True)
        assert [call.value for call in calls] == [{"n": number} for number in range(5)]
        assert client.resumptions == 0
        assert [call[0] for call in reliable.asked].count("initialize") == 1
    assert len(relay.harnesses) == 2


def test_a_relay_that_drops_everybody_is_asked_ever_less_often(relay: Relay, reliable: FakeExecutor) -> None:
    with ExecServerClient.connect_remote(args(relay)) as client:
        client.call("echo", 1)
        before, began = len(relay.asked("connect")), monotonic()
        dropping = gevent.spawn(drop_all, relay)
        until(lambda: len(relay.asked("connect")) >= before + 8)
        assert monotonic() - began > 0.7  # pauses of 50, 100, 200 and 400 ms at least
        dropping.kill()
        assert client.call("echo", 2) == 2


def drop_all(relay: Relay) -> None:
    """End each connection of a harness as soon as there is one."""
    while True:
        for peer in list(relay.harnesses):
            if peer.is_open:
                peer.drop()
        gevent.sleep(0.001)  # what it does, again and again; nothing waits for this


def test_calls_in_flight_survive_the_executors_lost_websocket(relay: Relay, reliable: FakeExecutor) -> None:
    with ExecServerClient.connect_remote(args(relay)) as client:
        for number in range(5):
            reliable.cut()
            assert client.call("echo", {"n": number}) == {"n": number}
        assert client.resumptions == 0


def test_with_a_plain_executor_the_session_is_resumed_on_a_new_stream(
    relay: Relay, plain: FakeExecutor
) -> None:
    with ExecServerClient.connect_remote(args(relay)) as client:
        plain.answers["slow"] = lambda params: gevent.sleep(0.3)
        call = gevent.spawn(client.call, "slow")
        until(lambda: ("slow", None) in plain.asked)
        relay.harnesses[-1].drop()
        with pytest.raises(TransportClosed):
            call.get(timeout=20)
        assert client.call("echo", {"again": True}) == {"again": True}
        assert client.resumptions == 1
        assert client.session_id == "session-1"
    assert len(relay.asked("connect")) == 2


def test_every_message_arrives_though_websockets_are_cut(relay: Relay, reliable: FakeExecutor) -> None:
    """Cut either side every 50 to 200 ms, once something has come; both ends send as fast as they can."""
    rng = random.Random(1)
    seconds = 60.0 if LONG else 2.0
    connector = RelayConnector(args(relay), {})
    transport = RelayTransport.connect(connector, 10)
    transport.send(b'{"id":1,"method":"initialize","params":{}}')
    assert b"session-1" in (transport.receive() or b"")
    assert transport.is_reliable
    sent = received = 0
    # Whose connections are lost again and again waits up to three seconds before the next.
    connections = max(2, seconds / 4)

    def cut() -> None:
        while True:
            before = received
            gevent.sleep(rng.uniform(0.05, 0.2))
            while received == before:  # on a busy machine connecting may take longer than that
                gevent.sleep(0.01)
            if rng.random() < 0.5:
                reliable.cut()
            elif relay.harnesses[-1].is_open:
                relay.harnesses[-1].drop()

    def ask() -> None:
        nonlocal sent
        end = monotonic() + seconds
        while monotonic() < end or sent <= 20 or len(relay.harnesses) <= connections:
            sent += 1
            body = {"n": sent, "text": "x" * rng.choice([0, 1000, 100_000])}
            transport.send(json.dumps({"id": sent, "method": "echo", "params": body}).encode())

    cutter, asker = gevent.spawn(cut), gevent.spawn(ask)
    while not asker.dead or received < sent:
        with gevent.Timeout(30):
            message = json.loads(transport.receive() or b"")
        received += 1
        assert message["result"]["n"] == received
    cutter.kill()
    transport.close()
    assert len(relay.harnesses) > connections
    assert received == sent > 20


def test_a_plain_executor_never_has_many_requests_before_it(relay: Relay, plain: FakeExecutor) -> None:
    with ExecServerClient.connect_remote(args(relay)) as client:
        open_requests = most = 0

        def answer(params: object) -> object:
            nonlocal open_requests, most
            open_requests += 1
            most = max(most, open_requests)
            gevent.sleep(0)
            open_requests -= 1
            return None

        plain.answers["many"] = answer
        calls = [gevent.spawn(client.call, "many") for _ in range(500)]
        gevent.joinall(calls, timeout=20, raise_error=True)
        assert len([entry for entry in plain.asked if entry[0] == "many"]) == 500
    assert most <= REMOTE_IN_FLIGHT < 128


def test_a_spent_address_is_asked_for_once_more(relay: Relay, plain: FakeExecutor) -> None:
    relay.upgrade_status = 401
    first = relay.replies["connect"]

    def connect(call: Call) -> Reply:
        if len(relay.asked("connect")) == 2:
            relay.upgrade_status = 101
        return first(call)

    relay.replies["connect"] = connect
    ExecServerClient.connect_remote(args(relay)).close()
    assert len(relay.asked("connect")) == 2


def test_a_rejection_of_the_registry_is_final(relay: Relay, executor: FakeExecutor) -> None:
    executor.rejects = True
    with pytest.raises(RegistryRefused, match="the registry rejected this client's authentication"):
        ExecServerClient.connect_remote(args(relay))
    assert len(relay.asked("connect")) == 1


def test_a_rejection_ends_a_session_that_is_resumed(relay: Relay, plain: FakeExecutor) -> None:
    with ExecServerClient.connect_remote(args(relay)) as client:
        plain.rejects = True
        relay.harnesses[-1].drop()
        until(lambda: client.state is SessionState.ENDED)
        with pytest.raises(ResumeFailed, match="rejected this client's authentication"):
            client.call("echo")
    assert len(relay.asked("connect")) == 2


@pytest.mark.parametrize(("status", "asked"), [(401, 2), (403, 1), (503, 1)])
def test_a_refused_upgrade_is_told(relay: Relay, plain: FakeExecutor, status: int, asked: int) -> None:
    relay.upgrade_status = status
    with pytest.raises(ConnectFailed, match=str(status)):
        ExecServerClient.connect_remote(args(relay))
    assert len(relay.asked("connect")) == asked


@pytest.mark.parametrize(
    ("reply", "kind", "text"),
    [
        (Reply(401, {"error": {"message": "who?"}}), RegistryRefused, r"\(401 Unauthorized\): who\?"),
        (Reply(404), RegistryRefused, "404 Not Found"),
        (Reply(503), ConnectFailed, "503 Service Unavailable"),
        (Reply(429), ConnectFailed, "429 Too Many Requests"),
        (Reply(408), ConnectFailed, "408 Request Timeout"),
        (Reply(200, {}), RegistryRefused, "environment registry request failed"),
        (Reply(200, []), RegistryRefused, "environment registry request failed"),
    ],
)
def test_what_the_registry_says_is_told(relay: Relay, reply: Reply, kind: type[Exception], text: str) -> None:
    relay.replies["connect"] = lambda call: reply
    with pytest.raises(kind, match=text):
        ExecServerClient.connect_remote(args(relay))


@pytest.mark.parametrize(
    ("member", "value", "text"),
    [
        ("environment_id", "other", "returned a different environment id"),
        ("security_profile", "x", "unsupported security profile `x`"),
        ("url", " ", "incomplete Noise connection data"),
        ("executor_registration_id", "", "incomplete Noise connection data"),
        ("harness_key_authorization", "", "incomplete Noise connection data"),
        ("executor_public_key", {"suite": "x"}, "environment registry request failed"),
    ],
)
def test_an_answer_of_the_registry_that_does_not_fit_is_final(
    relay: Relay, plain: FakeExecutor, member: str, value: object, text: str
) -> None:
    good = relay.replies["connect"]

    def connect(call: Call) -> Reply:
        body = good(call).body
        assert isinstance(body, dict)
        return Reply(200, body | {member: value})

    relay.replies["connect"] = connect
    with pytest.raises(RegistryRefused, match=text):
        ExecServerClient.connect_remote(args(relay))


def test_an_executor_with_other_keys_is_not_taken_for_the_first_one(
    relay: Relay, executor: FakeExecutor
) -> None:
    with ExecServerClient.connect_remote(args(relay)) as client:
        executor.register_anew()
        relay.harnesses[-1].drop()
        until(lambda: client.state is SessionState.ENDED)
        with pytest.raises(ResumeFailed, match="another executor has taken over"):
            client.call("echo")


def test_an_executor_that_forgot_the_stream_gets_a_new_one(relay: Relay, reliable: FakeExecutor) -> None:
    with ExecServerClient.connect_remote(args(relay)) as client:
        reliable.streams.clear()
        relay.harnesses[-1].drop()
        until(lambda: client.resumptions == 1)
        assert client.call("echo", [1]) == [1]
        assert client.session_id == "session-1"
    assert any(entry.endswith(" closed") for entry in reliable.resets)


@pytest.mark.parametrize("status", [404, 503])
def test_a_registry_that_is_away_for_a_moment_is_asked_again(
    relay: Relay, executor: FakeExecutor, status: int
) -> None:
    good = relay.replies["connect"]
    with ExecServerClient.connect_remote(args(relay)) as client:
        relay.replies["connect"] = lambda call: (
            Reply(status) if len(relay.asked("connect")) < 3 else good(call)
        )
        relay.harnesses[-1].drop()
        until(lambda: len(relay.asked("connect")) == 3)
        assert client.call("echo", [1]) == [1]


def test_the_pauses_double_and_are_not_all_alike(relay: Relay) -> None:
    pauses = list(islice(RelayConnector(args(relay), {}).pauses(), 6))
    for pause, base in zip(pauses, (0.5, 1, 2, 4, 5, 5), strict=True):
        assert base <= pause <= 1.5 * base
    assert pauses != list(islice(RelayConnector(args(relay), {}).pauses(), 6))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"url": " // "}, "environment registry base URL is required"),
        ({"environment_id": " "}, "environment id is required"),
        ({"environment_id": "a/b"}, "cannot be used"),
    ],
)
def test_what_cannot_be_an_address_is_refused(relay: Relay, changes: dict[str, str], text: str) -> None:
    with pytest.raises(RemoteConfigurationError, match=text):
        ExecServerClient.connect_remote(args(relay, **changes))
    assert relay.calls == []
