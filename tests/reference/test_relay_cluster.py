"""The reference's ends in a cluster: they lose their stream with its node, and find the next one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import gevent
import pytest

from tests.reference.install import ReferenceMissing, new_home, reference_binary
from tests.reference.model_server import say
from tests.reference.scenario import MARK, MakeClient, outputs, shell
from tests.reference.tool_output import ToolOutput
from tests.relay.cluster.conftest import Scene, new_scene
from tests.support.leaks import snapshot
from tests.support.waiting import wait_until
from tools.cluster.cluster import Cluster
from tools.cluster.ends import Executor

pytestmark = pytest.mark.timeout(300)
ENVIRONMENT = "box-1"


@pytest.fixture
def scene() -> Iterator[Scene]:
    """What one test makes."""
    before = snapshot()
    with new_scene() as made:
        yield made
    try:
        wait_until(lambda: not snapshot().leaked_since(before), 2.0, pause=gevent.sleep)
    except AssertionError:
        pass  # the fixture for all tests reports what is left


@pytest.fixture(params=["0.142.0", "0.169.0"])
def executor(request: pytest.FixtureRequest, scene: Scene) -> Iterator[tuple[Cluster, Executor]]:
    """A cluster with a reference executor, connected."""
    try:
        command = [str(reference_binary(request.param)), "exec-server"]
    except ReferenceMissing as missing:
        pytest.skip(str(missing))
    cluster = scene.cluster()
    home = new_home()
    _, token = cluster.make_token(ENVIRONMENT)
    executor = Executor(command, cluster.url, ENVIRONMENT, token, scene.folder, home=home, pause=gevent.sleep)
    cluster.executors[ENVIRONMENT] = executor
    executor.service.start(lambda: cluster.node_of(ENVIRONMENT))
    yield cluster, executor
    executor.service.kill()
    shutil.rmtree(home, ignore_errors=True)


def test_a_reference_executor_moves_from_a_killed_node(executor: tuple[Cluster, Executor]) -> None:
    cluster, process = executor
    for word in ("before", "after"):
        with cluster.connect(ENVIRONMENT) as client:
            assert client.start(["echo", word]).communicate().stdout == f"{word}\n".encode()
        if word == "before":
            name = cluster.node_of(ENVIRONMENT)
            cluster.nodes[name].service.kill()
            cluster.wait_for_move(name)
    process.service.must_run()


def test_a_reference_executor_that_is_recalled_comes(executor: tuple[Cluster, Executor]) -> None:
    cluster, process = executor
    name = cluster.node_of(ENVIRONMENT)
    cluster.balancer.command(f"set server nodes/{name} state maint")
    with cluster.connect(ENVIRONMENT) as client:
        assert client.start(["echo", "in"]).communicate().stdout == b"in\n"
    assert cluster.node_of(ENVIRONMENT) not in ("", name)
    process.service.must_run()


def test_the_real_client_works_through_a_cluster(
    scene: Scene, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXECUTOR_MARK", MARK)
    cluster = scene.cluster(ENVIRONMENT)
    client = make_client([[shell("echo EXECUTOR_MARK=$EXECUTOR_MARK; cat side > made")], [say("done")]])
    client.extra_env = {
        "CODEX_EXEC_SERVER_NOISE_REGISTRY_URL": cluster.url,
        "CODEX_EXEC_SERVER_NOISE_ENVIRONMENT_ID": ENVIRONMENT,
        "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN": cluster.executors[ENVIRONMENT].token,
    }
    (client.workspace / "side").write_text("through the cluster\n")
    client.run(None)
    assert outputs(client) == {"call-1": ToolOutput(0, None, f"EXECUTOR_MARK={MARK}\n")}
    assert (client.workspace / "made").read_text() == "through the cluster\n"
