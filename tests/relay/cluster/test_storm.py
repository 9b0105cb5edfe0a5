"""A node dies under a crowd: 4,500 executors at three nodes, while six environments stream.

The crowd is scripted, in processes of its own; nodes, balancer, engine and the six streams are real.  All of
it takes 10 s on two processors, and 115 s where a dozen other programs want them; the crowd is back after 1
to 2 s.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.relay.cluster.conftest import ENVIRONMENTS, Scene
from tools.cluster.cluster import Cluster
from tools.cluster.crowd import Crowd, tokens_in_engine
from tools.cluster.descriptors import allowed_for_children
from tools.cluster.redis_server import RedisServer
from tools.cluster.streams import Streams
from tools.problems import Problem

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
Whole = Callable[[Streams], None]
CROWD = tuple(f"crowd-{number}" for number in range(4500))
CONNECTIONS = 7500  # of the balancer: those of the crowd, and of the third of it that comes anew
DESCRIPTORS = 2 * CONNECTIONS + 500  # of the balancer, which needs the most
GATHERED_S = 300.0
BACK_S = 60.0
LEAST_SHARE = len(CROWD) // 10  # of the node that dies; the hash gives it about a third


def gathered(scene: Scene, cluster: Cluster) -> Crowd:
    """Return the crowd, all of it connected."""
    assert isinstance(cluster.engine, RedisServer)
    place = cluster.url.removeprefix("http://")
    crowd = Crowd(scene.folder, place, tokens_in_engine(cluster.engine, CROWD), cluster.pause)
    scene.callback(crowd.close)
    crowd.register(GATHERED_S)
    crowd.connect(GATHERED_S)
    return crowd


def test_a_crowd_comes_back_when_its_node_dies(scene: Scene, whole: Whole) -> None:
    try:
        scene.enter_context(allowed_for_children(DESCRIPTORS))
    except Problem as missing:
        pytest.skip(f"{missing}; {missing.cure}")
    cluster = scene.cluster(*ENVIRONMENTS, connections=CONNECTIONS)
    crowd = gathered(scene, cluster)
    streams = scene.streams(cluster)
    name = cluster.node_of(ENVIRONMENTS[0])
    living = [node for node in cluster.nodes.values() if node.name != name]
    left, lost = cluster.nodes_of(CROWD)[name], crowd.figures()["lost"]
    assert left >= LEAST_SHARE
    cluster.nodes[name].service.kill()

    def all_are_back() -> bool:
        figures = crowd.figures()
        return figures["lost"] - lost >= left and figures["connected"] == len(CROWD)

    cluster.wait_for(all_are_back, "the whole crowd is connected again", BACK_S)
    cluster.wait_for_move(name)
    cluster.wait_for(
        lambda: sum(cluster.nodes_of(CROWD)[node.name] for node in living) == len(CROWD),
        "the engine has the whole crowd at living nodes",
    )
    held = sum(node.figure("execserver_relay_executors") for node in living)
    assert held == len(CROWD) + len(ENVIRONMENTS)
    # 4xx would have each of them register again, at once.
    assert not [told for told in crowd.figures() if told.startswith("status 4")]
    cluster.wait_for(streams.flow(), "all streams flow")
    assert streams.worst_pause() < BACK_S
    whole(streams)
