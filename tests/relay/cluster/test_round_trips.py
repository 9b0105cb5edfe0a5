"""How often a harness waits for the engine, and that what is asked for less often is no older for it."""

from __future__ import annotations

import itertools
import json
import socket
from collections.abc import Iterator

import pytest

from tests.relay.cluster.nodes import Nodes, at
from tests.support.engine_process import EngineProcess, engine_program
from tests.support.relay_process import ENVIRONMENT, WAIT, Json, Peer, RelayProcess, key_object
from tests.support.waiting import wait_until

_FIRST_BEATS = 3 * 2  # two while it starts, then one every 120 s; each asks twice


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    engine_program()
    with EngineProcess() as engine, Nodes(engine) as made:
        yield made


@pytest.fixture(scope="module")
def relay(nodes: Nodes) -> RelayProcess:
    """A node that asks for nothing by itself while the tests run."""
    relay = nodes.add("n1", beat_s=120.0, lease_s=360.0)
    wait_until(lambda: calls(relay) == _FIRST_BEATS)
    return relay


@pytest.fixture(scope="module")
def token(nodes: Nodes) -> str:
    return nodes.token()


def calls(relay: RelayProcess) -> float:
    """Return how often the relay has asked the engine and waited."""
    return relay.metric('execserver_relay_engine_calls_total{result="ok"}')


def head_of(name: str, environment_id: str, token: str, body: bytes) -> bytes:
    """Return the head of a registry call."""
    lines = (
        f"POST /cloud/environment/{environment_id}/{name} HTTP/1.1",
        "Host: relay.test",
        "Connection: close",
        f"Authorization: Bearer {token}",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join((*lines, "", "")).encode()


def ask(relay: RelayProcess, name: str, token: str, body: Json) -> Json:
    """Make a registry call in one write, as our ends do; return the answer."""
    data = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", relay.port), WAIT) as sock:
        sock.sendall(head_of(name, ENVIRONMENT, token, data) + data)
        with sock.makefile("rb") as answer:
            status, _, rest = answer.read().partition(b"\r\n")
    assert b" 200 " in status
    found: Json = json.loads(rest.partition(b"\r\n\r\n")[2])
    return found


def test_a_handshake_waits_for_the_engine_eight_times(relay: RelayProcess, token: str) -> None:
    before = calls(relay)
    mine = {"security_profile": "noise_hybrid_ik_v1", "executor_public_key": key_object(0)}
    registered = ask(relay, "register", token, mine)
    with Peer(at(relay, registered["url"])):
        # It registers and comes (two each), is asked about once more, and its presence is told.
        wait_until(lambda: calls(relay) == before + 6)
        counted = [calls(relay)]
        granted = ask(relay, "connect", token, {"harness_public_key": key_object(1000)})
        counted.append(calls(relay))
        with Peer(at(relay, granted["url"])):
            # The third asks whether the token was revoked in that moment, and keeps nobody waiting.
            wait_until(lambda: calls(relay) >= counted[-1] + 3)
            counted.append(calls(relay))
            question = {
                "executor_registration_id": granted["executor_registration_id"],
                "harness_public_key": key_object(1000),
                "harness_key_authorization": granted["harness_key_authorization"],
            }
            assert ask(relay, "validate", token, question) == {"valid": True}
            counted.append(calls(relay))
    assert [after - before for before, after in itertools.pairwise(counted)] == [3, 3, 3]


def test_a_token_that_is_revoked_while_a_body_is_on_its_way_is_refused(
    nodes: Nodes, relay: RelayProcess
) -> None:
    token = nodes.token()
    body = json.dumps({"harness_public_key": key_object(1000)}).encode()
    before = calls(relay)
    with socket.create_connection(("127.0.0.1", relay.port), WAIT) as sock:
        sock.sendall(head_of("connect", ENVIRONMENT, token, body) + body[:10])
        wait_until(lambda: calls(relay) > before)
        nodes.revoke(token)
        sock.sendall(body[10:])
        assert sock.recv(65_536).startswith(b"HTTP/1.1 401 ")
