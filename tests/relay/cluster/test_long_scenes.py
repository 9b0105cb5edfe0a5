"""Further trouble: drains, an engine that forgets, a failover, cut networks, a stopped node."""

from __future__ import annotations

import signal
from collections.abc import Callable

import gevent
import pytest

from tests.relay.cluster.conftest import ENVIRONMENTS, Scene
from tests.relay.cluster.hosts import BACK, FRONT
from tests.relay.cluster.nginx import Nginx
from tools.cluster.cluster import Cluster
from tools.cluster.redis_server import RedisServer
from tools.cluster.streams import Streams
from tools.problems import Problem

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
Whole = Callable[[Streams], None]
PAUSE_S = 20.0
LEASE_S = 3.0
STOPPED_S = 10.0
CUT_S = 16.0
EMPTY_S = 4.0


def drain(cluster: Cluster, name: str) -> None:
    """End a node the polite way, and start it again once the balancer may send everybody."""
    node = cluster.nodes[name]
    node.service.send(signal.SIGTERM)
    node.service.wait()
    assert node.service.status == 0
    cluster.wait_for_move(name)
    node.start()
    cluster.balancer.wait_until("UP")


def test_nodes_that_drain_one_after_the_other(scene: Scene, whole: Whole) -> None:
    cluster = scene.cluster(*ENVIRONMENTS)
    streams = scene.streams(cluster)
    for name in cluster.nodes:
        drain(cluster, name)
        cluster.wait_for(streams.flow(), f"all streams flow after {name} was replaced")
    assert streams.worst_pause() < PAUSE_S
    whole(streams)


def test_an_engine_that_comes_back_empty_is_filled_again(scene: Scene, whole: Whole) -> None:
    cluster = scene.cluster(*ENVIRONMENTS, token_file=scene.empty_token_file())
    streams = scene.streams(cluster)
    assert isinstance(cluster.engine, RedisServer)
    cluster.engine.service.kill()
    cluster.engine.forget(scene.folder / "kept")
    cluster.engine.start()
    cluster.wait_for_reach(*ENVIRONMENTS)
    cluster.wait_for(streams.flow(), "all streams flow")
    whole(streams)


def test_an_engine_that_lost_its_tokens_refuses_nobody_until_it_is_restored(
    scene: Scene, whole: Whole
) -> None:
    cluster = scene.cluster(*ENVIRONMENTS)
    streams = scene.streams(cluster)
    assert isinstance(cluster.engine, RedisServer)
    kept = scene.folder / "kept"
    cluster.engine.service.kill()
    cluster.engine.forget(kept)
    cluster.engine.start()
    cluster.wait_for(
        lambda: all(each.figure("execserver_relay_engine_up") for each in cluster.nodes.values()),
        "all nodes have the empty engine",
    )
    gevent.sleep(EMPTY_S)
    assert cluster.ask_to_connect(ENVIRONMENTS[0]) == (503, "state_unavailable")
    cluster.engine.service.kill()
    cluster.engine.restore(kept)
    cluster.engine.start()
    cluster.wait_for_reach(*ENVIRONMENTS)
    for executor in cluster.executors.values():
        executor.service.must_run()
    cluster.wait_for(streams.flow(), "all streams flow")
    whole(streams)


def test_a_primary_that_dies_is_replaced(scene: Scene, whole: Whole) -> None:
    cluster = scene.cluster(*ENVIRONMENTS, replicated=True)
    streams = scene.streams(cluster)
    former = cluster.engine.current()
    former.service.kill()
    cluster.wait_for(lambda: cluster.engine.current() is not former, "there is another primary")
    cluster.wait_for_reach(*ENVIRONMENTS)
    cluster.wait_for(streams.flow(), "all streams flow")
    assert streams.worst_pause() < PAUSE_S
    whole(streams)


def test_a_node_cut_from_the_engine_keeps_its_streams(scene: Scene, whole: Whole) -> None:
    hosts = scene.hosts()
    cluster = scene.cluster(*ENVIRONMENTS, hosts=hosts)
    streams = scene.streams(cluster)
    name = cluster.node_of(ENVIRONMENTS[0])
    hosts.cut(name, BACK)
    gevent.sleep(CUT_S)
    cluster.wait_for(streams.flow(), "all streams flow meanwhile")
    place = cluster.nodes[name].place
    assert cluster.ask_to_connect(ENVIRONMENTS[0], place) == (503, "state_unavailable")
    hosts.heal(name, BACK)
    cluster.wait_for_reach(ENVIRONMENTS[0], place=place)
    assert streams.worst_pause() < PAUSE_S
    whole(streams)


def test_a_black_hole_before_a_node_is_gone_round(scene: Scene, whole: Whole) -> None:
    hosts = scene.hosts()
    cluster = scene.cluster(*ENVIRONMENTS, hosts=hosts)
    streams = scene.streams(cluster)
    name = cluster.node_of(ENVIRONMENTS[0])
    hosts.cut(name, FRONT)
    cluster.wait_for_move(name)
    cluster.wait_for(streams.flow(), "all streams flow by other nodes")
    assert streams.worst_pause() < PAUSE_S
    hosts.heal(name, FRONT)
    whole(streams)


def test_a_node_that_the_balancer_drops_sends_its_executors_away(scene: Scene, whole: Whole) -> None:
    cluster = scene.cluster(*ENVIRONMENTS)
    streams = scene.streams(cluster)
    name = cluster.node_of(ENVIRONMENTS[0])
    cluster.balancer.command(f"set server nodes/{name} state maint")
    with cluster.connect(ENVIRONMENTS[0]) as client:
        assert client.start(["echo", "in"]).communicate().stdout == b"in\n"
    assert cluster.node_of(ENVIRONMENTS[0]) != name
    cluster.wait_for(streams.flow(), "all streams flow")
    cluster.balancer.take_back(name)
    whole(streams)


def test_a_node_that_was_stopped_serves_nobody_twice(scene: Scene, whole: Whole) -> None:
    """It wakes with websockets of environments that live elsewhere: within a lease it has let go of them."""
    cluster = scene.cluster(*ENVIRONMENTS)
    streams = scene.streams(cluster)
    name = cluster.node_of(ENVIRONMENTS[0])
    node = cluster.nodes[name]
    node.service.freeze()
    cluster.wait_for_move(name)
    cluster.wait_for(streams.flow(), "all streams flow by other nodes")
    gevent.sleep(STOPPED_S)
    homes = cluster.homes()
    node.service.thaw()
    cluster.wait_for(lambda: node.figure("execserver_relay_executors") == 0, "it holds no executor", LEASE_S)
    assert node.figure("execserver_relay_harnesses") == 0
    assert cluster.homes() == homes
    cluster.wait_for(streams.flow(), "all streams flow")
    whole(streams)


def test_nginx_leads_round_a_killed_node(scene: Scene, whole: Whole) -> None:
    cluster = scene.cluster()
    try:
        nginx = Nginx(scene.folder, cluster)
    except Problem as missing:
        pytest.skip(f"{missing}; {missing.cure}")
    scene.callback(nginx.stop)
    nginx.start()
    cluster.url = nginx.url
    cluster.add_executors(*ENVIRONMENTS)
    streams = scene.streams(cluster)
    name = cluster.node_of(ENVIRONMENTS[0])
    cluster.nodes[name].service.kill()
    cluster.wait_for_move(name)
    cluster.wait_for(streams.flow(), "all streams flow")
    assert streams.worst_pause() < PAUSE_S
    whole(streams)
    assert "token=" not in (scene.folder / "relay.log").read_text()
