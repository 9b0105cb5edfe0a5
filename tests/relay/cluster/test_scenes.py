"""A cluster in trouble while six environments stream: what users notice, and that no byte is lost.

Redis, HAProxy, relays, executors and harnesses are real and on loopback.  The figures of
docs/relay-cluster.md are those of an idle machine; here the limits are what a busy one needs.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from execserver.client import ExecServerError
from tests.relay.cluster.conftest import ENVIRONMENTS
from tests.support.source import ROOT
from tools.cluster.cluster import Cluster
from tools.cluster.redis_server import RedisServer
from tools.cluster.streams import Streams

pytestmark = [
    pytest.mark.keeps_open("nodes and executors of the module's cluster are started again"),
    pytest.mark.timeout(120),
]
Whole = Callable[[Streams], None]
PAUSE_S = 20.0
REVOKED_S = 2.0


def test_a_killed_node_costs_a_pause_and_no_byte(cluster: Cluster, streams: Streams, whole: Whole) -> None:
    name = cluster.node_of(ENVIRONMENTS[0])
    cluster.nodes[name].service.kill()
    cluster.wait_for_move(name)
    cluster.wait_for(streams.flow(), "all streams flow again")
    assert streams.worst_pause() < PAUSE_S
    cluster.nodes[name].start()
    cluster.balancer.wait_until("UP")
    whole(streams)


def test_an_engine_that_dies_stops_no_stream(cluster: Cluster, streams: Streams, whole: Whole) -> None:
    assert isinstance(cluster.engine, RedisServer)
    cluster.engine.service.kill()
    cluster.wait_for(streams.flow(), "streams go on without the engine")
    assert cluster.ask_to_connect(ENVIRONMENTS[0]) == (503, "state_unavailable")
    cluster.engine.start()
    cluster.wait_for_reach(*ENVIRONMENTS)
    assert streams.worst_pause() < PAUSE_S
    whole(streams)


def test_a_takeover_ends_the_former_executor(cluster: Cluster) -> None:
    name = ENVIRONMENTS[1]
    old = cluster.executors[name]
    new = cluster.new_executor(name, old.token)
    new.service.start()
    old.service.wait()
    assert old.service.status == 1
    assert old.service.says("another executor has taken over this environment")
    cluster.wait_for(new.is_ready, "the new executor is connected")
    with cluster.connect(name) as client:
        assert client.start(["echo", "new"]).communicate().stdout == b"new\n"


def test_a_revoked_token_ends_at_once_what_was_opened_with_it(cluster: Cluster) -> None:
    name = ENVIRONMENTS[2]
    token_id, token = cluster.make_token(name, "harness")
    client = cluster.connect(name, token)
    lost: list[float] = []
    client.watch_connection(lambda there: None if there else lost.append(time.monotonic()))
    cluster.revoke(token_id)
    cluster.wait_for(lambda: lost, "the connection is closed", REVOKED_S)
    with pytest.raises(ExecServerError):
        cluster.connect(name, token)
    client.detach()


def test_the_balancer_writes_down_no_credential(cluster: Cluster) -> None:
    with cluster.connect(ENVIRONMENTS[3]) as client:
        client.start(["true"]).communicate()
    log = cluster.balancer.service.log.read_text()
    assert f"GET /rendezvous/{ENVIRONMENTS[3]}\n" in log
    assert "token=" not in log


@pytest.mark.parametrize("page", ["deploy/relay-cluster/alerts.yml", "docs/relay-cluster.md"])
def test_the_figures_that_operators_are_told_of_exist(cluster: Cluster, page: str) -> None:
    asked = set(re.findall(r"\bexecserver_relay_[a-z_]+\b", (ROOT / page).read_text()))
    assert len(asked) >= 4
    _, shown = cluster.nodes["n1"].get("/metrics")
    assert asked <= set(re.findall(r"^# TYPE (\S+)", shown, re.MULTILINE))
