"""A cluster of real programs for the tests of a module, with a stream in each of its environments."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import gevent
import pytest

from tests.relay.cluster.hosts import Hosts, cannot_make_hosts
from tests.support.folders import plain_place
from tests.support.leaks import snapshot
from tests.support.relay_process import program
from tests.support.waiting import wait_until
from tools.cluster.balancer import MAX_CONNECTIONS
from tools.cluster.cluster import NAMES, Cluster
from tools.cluster.redis_server import RedisServer, Replicated
from tools.cluster.streams import Result, Streams
from tools.problems import Failed, Problem

ENVIRONMENTS = tuple(f"box-{number}" for number in range(6))
QUICK = {"drain_s": 1.0, "close_timeout_s": 0.5, "token_check_s": 0.05}


class Scene(ExitStack):
    """What a test makes: clusters and streams, ended with it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def cluster(
        self,
        *environments: str,
        replicated: bool = False,
        hosts: Hosts | None = None,
        token_file: Path | None = None,
        words: Sequence[str] = (),
        connections: int = MAX_CONNECTIONS,
    ) -> Cluster:
        """Start a cluster with our executors of some environments; skips where a program is missing."""
        try:
            engine = self._engine(replicated, hosts)
            cluster = Cluster(
                self.folder,
                program(),
                engine,
                hosts=hosts.hosts if hosts else None,
                limits=QUICK,
                words=("--public-metrics", *words),
                connections=connections,
                pause=gevent.sleep,
                token_file=token_file,
            )
        except Problem as missing:
            pytest.skip(f"{missing}; {missing.cure}")
        self.callback(cluster.close)
        try:
            cluster.start()
            cluster.add_executors(*environments)
        except Failed as error:
            raise AssertionError(f"{error}{cluster.last_words()}") from None
        return cluster

    def streams(self, cluster: Cluster) -> Streams:
        """Read from every environment of a cluster."""
        streams = Streams([cluster.stream(name) for name in cluster.executors])
        self.callback(streams.drop)
        cluster.wait_for(streams.flow(), "all streams flow")
        streams.mark()
        return streams

    def hosts(self) -> Hosts:
        """Make a namespace for each node; skips where that is not allowed."""
        if reason := cannot_make_hosts():
            pytest.skip(reason)
        hosts = Hosts(NAMES)
        self.callback(hosts.close)
        return hosts

    def empty_token_file(self) -> Path:
        """Make a file for the tokens, so that they outlive the engine."""
        file = self.folder / "tokens.json"
        file.write_text('{"tokens": []}\n')
        file.chmod(0o600)
        return file

    def _engine(self, replicated: bool, hosts: Hosts | None) -> RedisServer | Replicated:
        if replicated:
            return Replicated(self.folder, gevent.sleep)
        if hosts is None:
            return RedisServer(self.folder, pause=gevent.sleep)
        options = {"protected-mode": "no"}
        return RedisServer(self.folder, host=hosts.engine_address, options=options, pause=gevent.sleep)


@contextmanager
def new_scene() -> Iterator[Scene]:
    """Yield a scene in a folder of its own, whose path is short enough for a socket."""
    folder = Path(tempfile.mkdtemp(prefix="cluster-", dir=plain_place()))
    try:
        with Scene(folder) as scene:
            yield scene
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def scene() -> Iterator[Scene]:
    """What one test makes."""
    with new_scene() as made:
        yield made


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster that every test of the module leaves as it was: all nodes up, all executors connected."""
    with new_scene() as made:
        yield made.cluster(*ENVIRONMENTS)


@pytest.fixture
def streams(cluster: Cluster, scene: Scene) -> Streams:
    """Streams of all its environments, which flow."""
    return scene.streams(cluster)


@pytest.fixture(autouse=True)
def the_hub_settles() -> Iterator[None]:
    """Let greenlets and deferred closes of a test finish: nothing else runs the hub after it."""
    before = snapshot().descriptors.keys()
    yield
    try:
        wait_until(lambda: snapshot().descriptors.keys() <= before, 10.0, pause=gevent.sleep)
    except AssertionError:
        pass  # the fixture for all tests reports what is left


@pytest.fixture
def whole() -> Callable[[Streams], None]:
    """End streams; fail unless each arrived whole and none lost its session."""

    def check(streams: Streams) -> None:
        results = streams.end()
        assert [result._replace(size=0) for result in results] == [Result(0, True, 0)] * len(results)
        assert all(result.size > 0 for result in results)

    return check
