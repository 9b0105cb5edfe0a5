"""Several relays as one: where harnesses are led, what moves, what is refused, and by whom."""

from __future__ import annotations

import json
import signal
import time
import zlib
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest

from execserver.wire.relay_frames import Handshake
from tests.relay.cluster.nodes import LIMITS, Nodes, at, refusal
from tests.support.engine_process import EngineProcess, engine_program
from tests.support.relay_process import Peer, RelayProcess, key_object
from tests.support.waiting import wait_until

GOING_AWAY, POLICY_VIOLATION = 1001, 1008
HELLO = Handshake(b"hello")


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    engine_program()
    with EngineProcess() as engine, Nodes(engine) as made:
        yield made


@pytest.fixture(scope="module")
def n1(nodes: Nodes) -> RelayProcess:
    return nodes.add("n1")


@pytest.fixture(scope="module")
def n2(nodes: Nodes, n1: RelayProcess) -> RelayProcess:
    """The second node, once both know each other."""
    relay = nodes.add("n2", "--node-url", "http://n2.test:8080", connect_wait_s=20.0)
    wait_until(lambda: n1.metric("execserver_relay_nodes") == relay.metric("execserver_relay_nodes") == 2)
    return relay


@pytest.fixture
def token(nodes: Nodes, n1: RelayProcess, n2: RelayProcess, request: pytest.FixtureRequest) -> str:
    """A token for an environment of the test's own."""
    nodes.environment = f"box-{zlib.crc32(request.node.name.encode()):x}"
    return nodes.token(nodes.environment)


def test_a_harness_of_any_node_is_led_to_the_executor(
    nodes: Nodes, n1: RelayProcess, n2: RelayProcess, token: str
) -> None:
    name = nodes.environment
    with n1.executor(token, 0, name) as executor:
        nodes.wait_for_presence("n1", name)
        granted = n2.grant(token, environment_id=name)
        assert parse_qs(urlsplit(granted["url"]).query)["node"] == ["n1"]
        assert f":{n2.port}/" in granted["url"]  # the common URL, by the host that was asked for
        with Peer(at(n1, granted["url"])) as harness:
            harness.send("stream", HELLO)
            assert executor.receive().stream_id == "stream"
            question = {
                "executor_registration_id": granted["executor_registration_id"],
                "harness_public_key": key_object(1000),
                "harness_key_authorization": granted["harness_key_authorization"],
            }
            # Whichever node is asked, an authorization is good once.
            asked = [each.call(name, "validate", question, token) for each in (n2, n1, n2)]
            assert asked == [(200, {"valid": True}), (200, {"valid": False}), (200, {"valid": False})]


def test_the_url_of_a_node_that_has_its_own_begins_with_it(
    nodes: Nodes, n1: RelayProcess, n2: RelayProcess, token: str
) -> None:
    registered = n2.register(token, 0, nodes.environment)
    assert "node=" not in registered["url"]  # an executor must find another node if this one is gone
    assert f":{n2.port}/" in registered["url"]
    with Peer(registered["url"]):
        nodes.wait_for_presence("n2", nodes.environment)
        url = n1.grant(token, environment_id=nodes.environment)["url"]
        assert url.startswith(f"ws://n2.test:8080/rendezvous/{nodes.environment}?token=h-")
        assert url.endswith("&node=n2")


@pytest.mark.parametrize("hint", ["", "&node=n2", "&node=n3", "&node=n1&node=n1", "&node=" + "x" * 300])
def test_a_harness_at_the_wrong_node_asks_again_and_a_forged_hint_moves_nobody(
    nodes: Nodes, n1: RelayProcess, n2: RelayProcess, token: str, hint: str
) -> None:
    name = nodes.environment
    with n1.executor(token, 0, name) as executor:
        nodes.wait_for_presence("n1", name)
        url = n2.grant(token, environment_id=name)["url"].replace("&node=n1", hint)
        refused = refusal(lambda: Peer(at(n2, url)))
        assert refused.status == 401
        assert refused.headers["x-codex-rendezvous-rejection-reason"] == "wrong_node"
        with Peer(at(n1, url)) as harness:  # the same credential is good where the executor is
            harness.send("stream", HELLO)
            assert executor.receive().stream_id == "stream"


def test_an_executor_whose_node_clients_do_not_reach_is_recalled_once(
    nodes: Nodes, n1: RelayProcess, n2: RelayProcess, token: str
) -> None:
    name = nodes.environment
    registered = n1.register(token, 0, name)
    with Peer(registered["url"]) as executor:
        nodes.wait_for_presence("n1", name)
        granted = n2.grant(token, environment_id=name)
        assert refusal(lambda: Peer(at(n2, granted["url"]))).status == 401
        executor.wait_for_end()
        assert executor.close_code == GOING_AWAY
    with Peer(at(n1, registered["url"])) as executor:  # it comes back to the same node
        nodes.wait_for_presence("n1", name)
        wait_until(lambda: n2.metric("execserver_relay_nodes") == 2)
        assert refusal(lambda: Peer(at(n2, granted["url"]))).status == 401
        with pytest.raises(TimeoutError):
            executor.receive_message(0.3)  # it stays: not again within some seconds


def test_an_executor_that_comes_to_another_node_takes_everybody_along(
    nodes: Nodes, n1: RelayProcess, n2: RelayProcess, token: str
) -> None:
    name = nodes.environment
    registered = n1.register(token, 0, name)
    with Peer(registered["url"]) as former:
        nodes.wait_for_presence("n1", name)
        harness = Peer(at(n1, n1.grant(token, environment_id=name)["url"]))
        with harness, Peer(at(n2, registered["url"])):
            harness.wait_for_end()
            former.wait_for_end()
            assert (harness.close_code, former.close_code) == (GOING_AWAY, GOING_AWAY)
            nodes.wait_for_presence("n2", name)
            url = n1.grant(token, environment_id=name)["url"]
            Peer(at(n2, url)).close()


def test_a_takeover_at_another_node_ends_the_former_executor_for_good(
    nodes: Nodes, n1: RelayProcess, n2: RelayProcess, token: str
) -> None:
    name = nodes.environment
    with n1.executor(token, 1, name) as former:
        nodes.wait_for_presence("n1", name)
        with n2.executor(token, 2, name):
            former.wait_for_end()
            assert former.close_code == POLICY_VIOLATION
            body = {"security_profile": "noise_hybrid_ik_v1", "executor_public_key": key_object(1)}
            for node in (n1, n2):
                status, answer = node.call(name, "register", body, token)
                assert (status, answer["error"]["code"]) == (409, "executor_superseded")


def test_harnesses_whose_executor_stays_away_are_sent_to_look_for_it(
    nodes: Nodes, n1: RelayProcess, token: str
) -> None:
    name = nodes.environment
    executor = n1.executor(token, 0, name)
    nodes.wait_for_presence("n1", name)
    with Peer(at(n1, n1.grant(token, environment_id=name)["url"])) as harness:
        begun = time.monotonic()
        executor.close()
        harness.wait_for_end()
        assert time.monotonic() - begun >= LIMITS["away_s"]  # it could have come back
        assert harness.close_code == GOING_AWAY
    wait_until(lambda: b"\n-n1:" in nodes.key(f"p:{{{name}}}"))


def test_a_call_waits_for_an_executor_that_comes_to_another_node(
    nodes: Nodes, n1: RelayProcess, n2: RelayProcess, token: str
) -> None:
    name = nodes.environment
    registered = n1.register(token, 0, name)
    call = n2.post_connect(token, name)
    with Peer(registered["url"]):
        answer = call.getresponse()
        assert answer.status == 200
        assert json.load(answer)["url"].endswith("&node=n1")
    call.close()


def test_a_call_for_an_executor_that_does_not_come_is_answered_503(
    nodes: Nodes, n1: RelayProcess, token: str
) -> None:
    n1.register(token, 0, nodes.environment)
    body = {"harness_public_key": key_object(1000)}
    status, answer = n1.call(nodes.environment, "connect", body, token)
    assert (status, answer["error"]["code"]) == (503, "executor_offline")


def test_a_revoked_token_ends_what_it_opened_at_every_node_at_once(
    nodes: Nodes, n1: RelayProcess, n2: RelayProcess, token: str
) -> None:
    name = nodes.environment
    executors_token, harness_token = nodes.token(name, "executor"), nodes.token(name, "harness")
    with n1.executor(executors_token, 0, name) as executor:
        nodes.wait_for_presence("n1", name)
        granted = n2.grant(harness_token, environment_id=name)
        with Peer(at(n1, granted["url"])) as harness:
            nodes.revoke(harness_token)
            harness.wait_for_end()  # some 10 ms where nothing else runs
            assert harness.close_code == POLICY_VIOLATION
        assert refusal(lambda: Peer(at(n1, granted["url"]))).status == 401
        assert n2.call(name, "connect", {}, harness_token)[0] == 401
        with pytest.raises(TimeoutError):
            executor.receive_message(0.1)  # it has a token of its own


def test_what_the_engine_cannot_answer_is_503_and_never_a_refusal(
    nodes: Nodes, n1: RelayProcess, token: str
) -> None:
    name = nodes.environment
    registered = n1.register(token, 0, name)
    key = f"r:{{{name}}}"
    nodes.engine.ask("DEL", key)
    nodes.engine.ask("LPUSH", key, "of another kind")
    body = {"security_profile": "noise_hybrid_ik_v1", "executor_public_key": key_object(0)}
    for call in ("register", "connect"):
        status, answer = n1.call(name, call, {**body, "harness_public_key": key_object(1)}, token)
        assert (status, answer["error"]["code"]) == (503, "state_unavailable"), call
    assert refusal(lambda: Peer(registered["url"])).status == 503
    nodes.engine.ask("DEL", key)
    registered = n1.register(token, 0, name)
    nodes.engine.ask("HSET", f"r:{{{name}}}", "fp", "not hexadecimal")
    assert refusal(lambda: Peer(registered["url"])).status == 503


def test_an_engine_that_forgot_everything_is_filled_again_by_the_executors(
    nodes: Nodes, n1: RelayProcess, token: str
) -> None:
    name = nodes.environment
    with n1.executor(token, 0, name) as executor:
        nodes.wait_for_presence("n1", name)
        kept = nodes.engine.ask("KEYS", "t:*")
        assert kept
        nodes.engine.ask("DEL", f"r:{{{name}}}", f"p:{{{name}}}", "n:n1")  # as if it had come back empty
        executor.wait_for_end()
        assert executor.close_code == GOING_AWAY  # it comes back, is told 401, and registers
    with n1.executor(token, 0, name):
        nodes.wait_for_presence("n1", name)


def test_a_name_is_for_one_node(nodes: Nodes, n1: RelayProcess) -> None:
    with pytest.raises(AssertionError, match="another relay is running as node n1"):
        nodes.relay("n1", lease_s=0.3)


def test_a_node_whose_name_another_process_has_taken_sends_everybody_away_and_ends(nodes: Nodes) -> None:
    token = nodes.token("taken")
    with nodes.relay("n5") as relay, relay.executor(token, 0, "taken") as executor:
        nodes.wait_for_presence("n5", "taken")
        nodes.engine.ask("SET", "n:n5", f"{'f' * 16}|up|0|0|0|", "PX", "60000")
        executor.wait_for_end()
        assert executor.close_code == GOING_AWAY
        assert relay.process.wait(20) == 1
        assert nodes.engine.ask("EXISTS", "n:n5") == b":1\r\n"  # it is the other's


def test_a_balancer_sees_a_node_leave_before_it_sends_anybody_away(nodes: Nodes, n1: RelayProcess) -> None:
    name = "draining"
    token = nodes.token(name)
    # Long enough for a busy machine to come before anybody is sent away.
    with nodes.relay("n3", "--drain", "2", balancer_s=3.0) as leaving:
        registered = leaving.register(token, 0, name)
        with Peer(registered["url"]) as executor:
            nodes.wait_for_presence("n3", name)
            granted = n1.grant(token, environment_id=name)
            assert granted["url"].endswith("&node=n3")
            assert leaving.request("GET", "/lb")[0] == 200
            leaving.process.send_signal(signal.SIGTERM)
            wait_until(lambda: leaving.request("GET", "/lb")[0] == 404)
            assert leaving.request("GET", "/readyz")[0] == 503
            # Until the balancer has noticed, it takes whom it is sent.
            with Peer(at(leaving, granted["url"])) as harness:
                for peer in (executor, harness):
                    peer.wait_for_end()
                    assert peer.close_code == GOING_AWAY
        with Peer(at(n1, registered["url"])):
            nodes.wait_for_presence("n1", name)
        assert leaving.process.wait(20) == 0
        assert nodes.engine.ask("EXISTS", "n:n3") == b":0\r\n"


def test_without_its_engine_a_node_keeps_what_it_has_and_then_lets_go(nodes: Nodes) -> None:
    with EngineProcess() as engine, Nodes(engine) as alone:
        # Between the two steps is so much time that the first is seen to be one on a busy machine as well.
        relay = alone.add("n1", "--engine-grace", "6s", isolation_s=1.0, lease_s=1.5)
        busy_token, idle_token = alone.token("busy"), alone.token("idle")
        busy, idle = relay.executor(busy_token, 0, "busy"), relay.executor(idle_token, 0, "idle")
        alone.wait_for_presence("n1", "busy")
        with Peer(at(relay, relay.grant(busy_token, environment_id="busy")["url"])) as harness:
            begun = time.monotonic()
            engine.pause()
            try:
                status, answer = relay.call("busy", "connect", {}, busy_token)
                assert (status, answer["error"]["code"]) == (503, "state_unavailable")
                harness.send("stream", HELLO)
                assert busy.receive().stream_id == "stream"
                idle.wait_for_end()  # to a node that has an engine, if there is one
                assert idle.close_code == GOING_AWAY
                wait_until(lambda: relay.request("GET", "/lb")[0] == 404)
                with pytest.raises(TimeoutError):
                    harness.receive_message(0.01)
                harness.wait_for_end()  # tokens may have been revoked
                assert harness.close_code == GOING_AWAY
                assert time.monotonic() - begun > 6.0
                assert relay.metric("execserver_relay_isolated") == 1
            finally:
                engine.go_on()
            wait_until(lambda: relay.request("GET", "/lb")[0] == 200)
            with relay.executor(idle_token, 0, "idle"):
                alone.wait_for_presence("n1", "idle")
        for peer in (busy, idle):
            peer.close()


def test_a_node_that_slept_through_a_move_lets_go_as_soon_as_it_wakes(nodes: Nodes, n1: RelayProcess) -> None:
    name = "asleep"
    token = nodes.token(name)
    with nodes.relay("n4", lease_s=0.6) as sleeper:
        registered = sleeper.register(token, 0, name)
        with Peer(registered["url"]) as former:
            nodes.wait_for_presence("n4", name)
            sleeper.process.send_signal(signal.SIGSTOP)
            wait_until(lambda: nodes.engine.ask("EXISTS", "n:n4") == b":0\r\n")
            with Peer(at(n1, registered["url"])):
                nodes.wait_for_presence("n1", name)
                sleeper.process.send_signal(signal.SIGCONT)
                former.wait_for_end()
                assert former.close_code == GOING_AWAY
                granted = n1.grant(token, environment_id=name)
                assert granted["url"].endswith("&node=n1")


def test_the_metrics_page_tells_how_the_engine_does(n1: RelayProcess) -> None:
    assert n1.metric('execserver_relay_engine_calls_total{result="ok"}') > 0
    assert n1.metric("execserver_relay_engine_up") == 1
    assert 0 < n1.metric("execserver_relay_lease_seconds") <= LIMITS["lease_s"]
