"""What is measured of relays that share an engine: beside one node in memory, and how faults are felt.

Everything runs on this machine: what a cluster costs in CPU is seen, what it brings on several is not.
"""

from __future__ import annotations

import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import gevent

from bench.relay_ends import Executor, RelayUnderTest, upgraded
from bench.relay_rows import Row, handshake
from tools.cluster.cluster import Cluster
from tools.cluster.redis_server import RedisServer
from tools.cluster.streams import Streams, connect

_ENVIRONMENTS = tuple(f"bench-{number}" for number in range(6))
_DOWN_S = 4.0
_REVOKED_S = 10.0

Columns = dict[str, float]


class ClusterRow(NamedTuple):
    """One line: what is shown, and how its columns are measured; True asks for small sizes."""

    row: Row
    measure: Callable[[Sequence[str], bool], Columns]


def grants(program: Sequence[str], quick: bool) -> Columns:
    """Ask for a harness's connection and make it, by the relay's CPU time; 200 at once is what it allows."""
    return _both(program, lambda relay: _grants(relay, 50 if quick else 150))


def upgrades(program: Sequence[str], quick: bool) -> Columns:
    """Connect an executor again and again, by the relay's CPU time."""
    return _both(program, lambda relay: _upgrades(relay, 100 if quick else 1000))


def shake(program: Sequence[str], quick: bool) -> Columns:
    """Ask the registry, connect, shake hands, initialize: at one node, and through HAProxy and three."""
    with folder() as home, RelayUnderTest(program, None) as relay, Executor(relay, program, str(home)):
        one = handshake(relay, quick)
    with _cluster(program, _ENVIRONMENTS[:1]) as cluster:
        times = []
        for _ in range(5 if quick else 30):
            begun = time.perf_counter()
            client = cluster.connect(_ENVIRONMENTS[0])
            times.append(time.perf_counter() - begun)
            client.close()
    return {"one": one, "cluster": statistics.median(times) * 1000}


def kill(program: Sequence[str], quick: bool) -> Columns:
    """Kill a node that serves a stream, with signal 9."""
    with _streaming(program) as (cluster, streams):
        name = cluster.node_of(_ENVIRONMENTS[0])
        cluster.nodes[name].service.kill()
        cluster.wait_for_move(name)
        return {"cluster": _felt(cluster, streams)}


def drain(program: Sequence[str], quick: bool) -> Columns:
    """End a node that serves a stream the polite way."""
    with _streaming(program) as (cluster, streams):
        name = cluster.node_of(_ENVIRONMENTS[0])
        cluster.nodes[name].service.send(signal.SIGTERM)
        cluster.nodes[name].service.wait()
        cluster.wait_for_move(name)
        return {"cluster": _felt(cluster, streams)}


def engine_down(program: Sequence[str], quick: bool) -> Columns:
    """Take the engine away for four seconds."""
    with _streaming(program) as (cluster, streams):
        (service,) = cluster.engine.services
        service.kill()
        gevent.sleep(_DOWN_S)
        cluster.engine.start()
        cluster.wait_for_reach(*_ENVIRONMENTS)
        return {"cluster": _felt(cluster, streams)}


def revoke(program: Sequence[str], quick: bool) -> Columns:
    """Revoke the token of a harness, and wait until its connection is lost."""
    with _cluster(program, _ENVIRONMENTS[:1]) as cluster:
        times = [_lost_after(cluster, _ENVIRONMENTS[0]) for _ in range(3 if quick else 10)]
    return {"cluster": statistics.median(times) * 1000}


CLUSTER_ROWS = {
    "cluster_conn": ClusterRow(Row("harnesses let in, by CPU time of the relay", "/s", True), grants),
    "cluster_up": ClusterRow(Row("executors connected, by CPU time of the relay", "/s", True), upgrades),
    "cluster_shake": ClusterRow(Row("connect, handshake, initialize", "ms", False), shake),
    "cluster_kill": ClusterRow(Row("node killed: the longest pause of six streams", "s", False), kill),
    "cluster_drain": ClusterRow(Row("node drained: the longest pause of six streams", "s", False), drain),
    "cluster_down": ClusterRow(
        Row("engine away 4 s: the longest pause of six streams", "s", False), engine_down
    ),
    "cluster_revoke": ClusterRow(Row("token revoked: until its websocket is closed", "ms", False), revoke),
}


def _both(program: Sequence[str], measure: Callable[[RelayUnderTest], float]) -> Columns:
    """Measure one node with its state in memory, then with an engine."""
    with RelayUnderTest(program, None) as relay:
        memory = measure(relay)
    with folder() as place, ExitStack() as stack:
        engine = RedisServer(place)
        stack.callback(engine.service.kill)
        engine.start()
        with RelayUnderTest(program, None, ("--engine", engine.url, "--node", "n1")) as relay:
            return {"memory": memory, "engine": measure(relay)}


def _grants(relay: RelayUnderTest, count: int) -> float:
    with relay.scripted_executor():
        begun = relay.cpu_s
        for _ in range(count):
            relay.scripted_harness().close()
        return count / max(relay.cpu_s - begun, 0.01)


def _upgrades(relay: RelayUnderTest, count: int) -> float:
    url = relay.registered(relay.token)
    begun = relay.cpu_s
    for _ in range(count):
        upgraded(url).close()
    return count / max(relay.cpu_s - begun, 0.01)


def _lost_after(cluster: Cluster, name: str) -> float:
    """Return the seconds from revoking the token of a new harness to the loss of its connection."""
    token_id, token = cluster.make_token(name, "harness")
    client = connect(cluster.url, name, token)
    lost: list[float] = []
    client.watch_connection(lambda there: None if there else lost.append(time.monotonic()))
    begun = time.monotonic()
    cluster.revoke(token_id)
    cluster.wait_for(lambda: lost, "the connection is lost", _REVOKED_S)
    client.detach()
    return lost[0] - begun


def _felt(cluster: Cluster, streams: Streams) -> float:
    """Return the longest pause since the mark, once all go on."""
    cluster.wait_for(streams.flow(), "every stream goes on")
    return streams.worst_pause()


@contextmanager
def _streaming(program: Sequence[str]) -> Iterator[tuple[Cluster, Streams]]:
    with _cluster(program, _ENVIRONMENTS) as cluster:
        streams = Streams([cluster.stream(name) for name in _ENVIRONMENTS])
        try:
            cluster.wait_for(streams.flow(), "every stream flows")
            streams.mark()
            yield cluster, streams
            if not all(result.is_whole and not result.resumptions for result in streams.end()):
                raise RuntimeError("a stream did not arrive whole")
        finally:
            streams.drop()


@contextmanager
def _cluster(program: Sequence[str], environments: Sequence[str]) -> Iterator[Cluster]:
    with folder() as place:
        engine = RedisServer(place, pause=gevent.sleep)
        words = ("--drain", "2", "--log-level", "warn")
        cluster = Cluster(place, program, engine, words=words, pause=gevent.sleep)
        try:
            cluster.start()
            cluster.add_executors(*environments)
            yield cluster
        finally:
            cluster.close()


@contextmanager
def folder() -> Iterator[Path]:
    """Make a folder for as long as it is used."""
    made = Path(tempfile.mkdtemp(prefix="bench-cluster-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
