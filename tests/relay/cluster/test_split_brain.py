"""A node that is cut from the engine while another executor takes over an environment whose streams it has.

It cannot know.  So the former executor's streams go on there, beside the new one at another node: until the
node reaches the engine again, at the latest until `--engine-grace` has passed since its lease ended.
"""

from __future__ import annotations

import time

import pytest

from tests.relay.cluster.conftest import ENVIRONMENTS, Scene
from tests.relay.cluster.hosts import BACK, Hosts
from tools.cluster.cluster import Cluster
from tools.cluster.ends import Executor
from tools.cluster.streams import Streams, connect

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
TAKEN, OTHER = ENVIRONMENTS[:2]
LEASE_S = 3.0
GRACE_S = 10.0
BACK_S = 5.0  # to connect to the engine again, and to ask about everybody here
OVER_S = 4.0  # a beat that waits for its answer until it is given up, and the close handshake


class Split:
    """An environment with two executors; the node of the first, with a stream, is cut from the engine."""

    def __init__(self, scene: Scene, hosts: Hosts, *words: str) -> None:
        self.cluster: Cluster = scene.cluster(TAKEN, OTHER, hosts=hosts, words=words)
        self.streams: Streams = scene.streams(self.cluster)
        self.stale, self.kept = self.streams.all
        self.former: Executor = self.cluster.executors[TAKEN]
        self.node = self.cluster.node_of(TAKEN)
        hosts.cut(self.node, BACK)
        self.cut = time.monotonic()
        self._take_over()

    def _take_over(self) -> None:
        cluster, node = self.cluster, self.node
        place = next(each.place for name, each in cluster.nodes.items() if name != node)
        executor = cluster.new_executor(TAKEN, self.former.token, place=place)
        executor.service.start(lambda: cluster.node_of(TAKEN) not in ("", node))
        with connect(f"http://{place}", TAKEN, executor.token) as client:
            assert client.start(["echo", "new"]).communicate().stdout == b"new\n"
        cluster.wait_for(self.streams.flow(), "the former executor's stream goes on at the cut node")

    def ended_after(self, since: float) -> float:
        """Wait for the former executor's end; return how long after a moment its last byte came."""
        self.former.service.wait()
        assert self.former.service.status == 1
        assert self.former.service.says("another executor has taken over this environment")
        return self.stale.arrived - since

    def other_is_whole(self) -> bool:
        """Tell whether nobody else noticed."""
        self.cluster.wait_for(
            lambda: self.kept.has_data_since(self.stale.arrived), "the other stream goes on"
        )
        result = self.kept.end()
        return result.is_whole and not result.resumptions


def test_a_superseded_executor_at_a_cut_node_ends_soon_after_the_node_is_back(scene: Scene) -> None:
    hosts = scene.hosts()
    split = Split(scene, hosts)
    healed = time.monotonic()
    hosts.heal(split.node, BACK)
    assert 0 < split.ended_after(healed) < BACK_S
    assert split.cluster.node_of(TAKEN) not in ("", split.node)
    assert split.other_is_whole()


def test_a_superseded_executor_at_a_node_that_stays_cut_ends_with_the_grace(scene: Scene) -> None:
    split = Split(scene, scene.hosts(), "--engine-grace", f"{GRACE_S:.0f}s")
    assert GRACE_S < split.ended_after(split.cut) < LEASE_S + GRACE_S + OVER_S
    assert split.other_is_whole()
