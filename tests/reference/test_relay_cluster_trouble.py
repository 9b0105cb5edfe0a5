"""The reference's ends in a cluster in trouble: what they lose, they make good by themselves, within a bound.

An end of the reference keeps no stream over a lost websocket.  Its executor connects anew, or registers
again, and keeps its sessions for those who resume them; its client asks for another connection.  Neither
ends, and what is begun afterwards is whole.  That no session has to be resumed holds for our ends only.
"""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import gevent
import pytest

from execserver.client import ConnectFailed, Output, RemoteProcess
from tests.reference.codex_cli import Client
from tests.reference.install import ReferenceMissing, new_home, reference_binary
from tests.reference.model_server import Item, ModelServer, say
from tests.reference.scenario import MakeClient, outputs, shell
from tests.reference.tool_output import ToolOutput
from tests.relay.cluster.conftest import Scene, new_scene
from tests.relay.cluster.hosts import FRONT, Hosts
from tests.support.leaks import snapshot
from tests.support.waiting import wait_until
from tools.cluster.cluster import Cluster
from tools.cluster.ends import Executor

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
ENVIRONMENT = "box-1"
AGAIN_S = 30.0  # from the end of the trouble until a new harness is served, on a busy machine
CLIENT_S = 150.0  # for all of the client's run
ENGINE_AWAY_S = 4.0


class Place(NamedTuple):
    """A cluster, and the hosts of its nodes if they have some of their own."""

    cluster: Cluster
    hosts: Hosts | None


def drain(place: Place) -> None:
    """Replace every node, one after the other."""
    cluster = place.cluster
    for node in cluster.nodes.values():
        node.service.send(signal.SIGTERM)
        node.service.wait()
        cluster.wait_for_move(node.name)
        node.start()
        cluster.balancer.wait_until("UP")


def lose_engine(place: Place) -> None:
    """Take the engine away for some seconds; it keeps its data."""
    (service,) = place.cluster.engine.services
    service.kill()
    gevent.sleep(ENGINE_AWAY_S)
    place.cluster.engine.start()


def lose_primary(place: Place) -> None:
    """Kill the primary of three."""
    former = place.cluster.engine.current()
    former.service.kill()
    place.cluster.wait_for(lambda: place.cluster.engine.current() is not former, "there is another primary")


def drop_node(place: Place) -> None:
    """Have the balancer take the executor's node out, with its connections, although it lives."""
    name = place.cluster.node_of(ENVIRONMENT)
    place.cluster.balancer.drop(name)
    place.cluster.wait_for_move(name)


def make_black_hole(place: Place) -> None:
    """Let packets between the balancer and the executor's node vanish."""
    name = place.cluster.node_of(ENVIRONMENT)
    assert place.hosts is not None
    place.hosts.cut(name, FRONT)
    place.cluster.wait_for_move(name)


Trouble = Callable[[Place], None]
MOVES = [
    drain,
    drop_node,
    make_black_hole,
]  # the executor loses its websocket; by the others no stream is touched
TROUBLES = [*MOVES, lose_engine, lose_primary]


@pytest.fixture(params=TROUBLES, ids=lambda trouble: trouble.__name__)
def trouble(request: pytest.FixtureRequest) -> Trouble:
    found: Trouble = request.param
    return found


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


@pytest.fixture
def place(scene: Scene, trouble: Trouble) -> Place:
    """A cluster without executors."""
    hosts = scene.hosts() if trouble is make_black_hole else None
    return Place(scene.cluster(replicated=trouble is lose_primary, hosts=hosts), hosts)


@pytest.fixture(params=["0.142.0", "0.169.0"])
def executor(request: pytest.FixtureRequest, scene: Scene, place: Place) -> Iterator[Executor]:
    """A reference executor, connected."""
    try:
        command = [str(reference_binary(request.param)), "exec-server"]
    except ReferenceMissing as missing:
        pytest.skip(str(missing))
    home, cluster = new_home(), place.cluster
    _, token = cluster.make_token(ENVIRONMENT)
    made = Executor(command, cluster.url, ENVIRONMENT, token, scene.folder, home=home, pause=gevent.sleep)
    cluster.executors[ENVIRONMENT] = made
    made.service.start(lambda: cluster.node_of(ENVIRONMENT))
    yield made
    made.service.kill()
    shutil.rmtree(home, ignore_errors=True)


def echoed(process: RemoteProcess, data: bytes) -> bytes:
    """Write to `cat`; return what comes next."""
    process.write(data)
    return next(event.data for event in process if isinstance(event, Output))


def is_served(cluster: Cluster) -> bool:
    """Tell whether a new harness gets a command run: nodes come back to the engine one after the other."""
    try:
        with cluster.connect(ENVIRONMENT) as client:
            return client.start(["echo", "new"]).communicate().stdout == b"new\n"
    except ConnectFailed:
        return False


def test_a_reference_executor_comes_back_with_its_sessions(
    place: Place, executor: Executor, trouble: Trouble
) -> None:
    cluster = place.cluster
    with cluster.connect(ENVIRONMENT) as client:
        process = client.start(["cat"], pipe_stdin=True)
        assert echoed(process, b"before") == b"before"
        trouble(place)
        cluster.wait_for(lambda: is_served(cluster), "a new harness is served", AGAIN_S)
        with gevent.Timeout(AGAIN_S):
            assert echoed(process, b"after") == b"after"
        assert (client.resumptions > 0) == (trouble in MOVES)
    executor.service.must_run()


class Run:
    """A client's run in a thread, whose second command waits until it may go on."""

    def __init__(self, client: Client) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=client.run, args=(None,))

    def second(self, model: ModelServer) -> list[Item]:
        """Be the model's second turn."""
        self.reached.set()
        assert self.go_on.wait(CLIENT_S)
        return [shell("cat side; echo after", "call-2")]


def test_a_reference_client_finds_its_executor_again(
    place: Place, trouble: Trouble, make_client: MakeClient
) -> None:
    cluster = place.cluster
    cluster.add_executors(ENVIRONMENT)
    steps: list[Run] = []
    client = make_client(
        [[shell("echo before; echo kept > side")], lambda model: steps[0].second(model), [say("done")]]
    )
    client.extra_env = {
        "CODEX_EXEC_SERVER_NOISE_REGISTRY_URL": cluster.url,
        "CODEX_EXEC_SERVER_NOISE_ENVIRONMENT_ID": ENVIRONMENT,
        "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN": cluster.executors[ENVIRONMENT].token,
    }
    run = Run(client)
    steps.append(run)
    run.thread.start()
    try:
        cluster.wait_for(run.reached.is_set, "the first command is done", CLIENT_S)
        trouble(place)
        cluster.wait_for_reach(ENVIRONMENT)
    finally:
        run.go_on.set()
        cluster.wait_for(lambda: not run.thread.is_alive(), "the client has ended", CLIENT_S)
    assert outputs(client) == {
        "call-1": ToolOutput(0, None, "before\n"),
        "call-2": ToolOutput(0, None, "kept\nafter\n"),
    }
