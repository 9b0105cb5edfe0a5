"""A whole cluster: an engine, relay nodes, HAProxy, executors; all of them children of this process."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tools.cluster.asking import ask
from tools.cluster.balancer import MAX_CONNECTIONS, Balancer
from tools.cluster.ends import Executor, Node
from tools.cluster.redis_server import EngineError, RedisServer, Replicated
from tools.cluster.service import Pause, Service, wait_for

if TYPE_CHECKING:
    from execserver.client import ExecServerClient
    from execserver.relay.engine.resp import Command, Reply
    from tools.cluster.streams import Stream

LIMITS_VARIABLE = "EXECSERVER_RELAY_LIMITS"
NAMES = ("n1", "n2", "n3")
KEY = {
    "suite": "Noise_hybridIK_X25519+MLKEM768_AESGCM_SHA256",
    "x25519_public_key": "A" * 43 + "=",
    "mlkem768_public_key": "A" * 1579 + "=",
}


class Host(NamedTuple):
    """Where a node runs: an address, and the words that put a process there."""

    address: str = "127.0.0.1"
    prefix: Sequence[str] = ()


class Cluster:
    """The parts; `close` ends them, whatever their state."""

    def __init__(
        self,
        folder: Path,
        execserver: Sequence[str],
        engine: RedisServer | Replicated,
        *,
        names: Sequence[str] = NAMES,
        hosts: Mapping[str, Host] | None = None,
        words: Sequence[str] = (),
        token_file: Path | None = None,
        limits: Mapping[str, float] | None = None,
        connections: int = MAX_CONNECTIONS,
        pause: Pause = time.sleep,
    ) -> None:
        """Take their places; `words` are options of every node.  Raises Problem.

        Tokens are in the engine, or in a file.  The balancer holds so many `connections`.
        """
        self.folder = folder
        self.engine = engine
        self.executors: dict[str, Executor] = {}
        self._replaced: list[Executor] = []
        self._execserver, self.pause = execserver, pause
        variables = {LIMITS_VARIABLE: json.dumps(limits)} if limits else {}
        self._token_file = token_file
        files = ["--token-file", str(token_file)] if token_file else []
        common = ["--engine", engine.url, "--insecure-http", *files, *words]
        self.nodes = {}
        for name in names:
            host = (hosts or {}).get(name, Host())
            self.nodes[name] = Node(
                *(name, execserver, common, folder),
                host=host.address,
                prefix=host.prefix,
                variables=variables,
                pause=pause,
            )
        places = {name: node.place for name, node in self.nodes.items()}
        self.balancer = Balancer(folder, places, connections=connections, pause=pause)
        self.url = self.balancer.url  # by which executors and harnesses come

    def start(self) -> None:
        """Start engine, nodes and balancer.  Raises Failed."""
        self.engine.start()
        for node in self.nodes.values():
            node.start(wait=False)
        for node in self.nodes.values():
            self.wait_for(node.takes_all, f"{node.name} takes everybody")
        self.balancer.start()
        self.balancer.wait_until("UP", *self.nodes)

    def make_token(self, environment_id: str, role: str = "both") -> tuple[str, str]:
        """Store a token; return its id and its text."""
        from execserver.relay.engine.tokens import EngineTokens
        from execserver.relay.tokens import create, new_token

        if self._token_file is not None:
            token, text = create(str(self._token_file), environment_id, role)
            return token.id, text
        token, text = new_token(environment_id, role)
        EngineTokens(_Asked(self.engine.current())).add(token)
        return token.id, text

    def revoke(self, token_id: str) -> None:
        """Remove a token from the engine, and have the nodes told."""
        from execserver.relay.engine.tokens import EngineTokens

        EngineTokens(_Asked(self.engine.current())).revoke(token_id)

    def add_executors(self, *environment_ids: str, execserver: Sequence[str] | None = None) -> None:
        """Start executors of these environments and wait until they are connected.  Raises Failed."""
        made = [self.new_executor(name, self.make_token(name)[1], execserver) for name in environment_ids]
        for executor in made:
            executor.service.start()
        for executor in made:
            self.wait_for(executor.is_ready, f"the executor of {executor.environment_id} is connected")

    def new_executor(
        self, environment_id: str, token: str, execserver: Sequence[str] | None = None, place: str = ""
    ) -> Executor:
        """Return an executor that is not started yet; it takes the place of an earlier one here.

        It comes by the balancer, or to one place.
        """
        before = self.executors.get(environment_id)
        if before is not None:
            self._replaced.append(before)
        name = f"{environment_id}-{len(self._replaced)}"
        executor = self.executors[environment_id] = Executor(
            *(
                execserver or self._execserver,
                f"http://{place}" if place else self.url,
                environment_id,
                token,
            ),
            self.folder,
            name=name,
            pause=self.pause,
        )
        return executor

    def connect(self, environment_id: str, token: str = "") -> ExecServerClient:
        """Connect a harness; without a token with that of the executor."""
        from tools.cluster.streams import connect

        return connect(self.url, environment_id, token or self.executors[environment_id].token)

    def stream(self, environment_id: str) -> Stream:
        """Connect a harness and let it read."""
        from tools.cluster.streams import Stream

        return Stream(self.connect(environment_id))

    def node_of(self, environment_id: str) -> str:
        """Return the node where the executor is, by what the engine holds; empty if it is not connected."""
        try:
            return _node_in(self.engine.current().ask("GET", f"p:{{{environment_id}}}"))
        except (OSError, EngineError):
            return ""

    def nodes_of(self, environment_ids: Iterable[str]) -> Counter[str]:
        """Return how many of these executors are at each node, by what the engine holds."""
        held = self.engine.current().ask("MGET", *[f"p:{{{name}}}" for name in environment_ids])
        return Counter(_node_in(each) for each in held) if isinstance(held, list) else Counter()

    def homes(self) -> dict[str, str]:
        """Return the node of each executor, by environment."""
        return {name: self.node_of(name) for name in self.executors}

    def wait_for_move(self, node: str) -> None:
        """Wait until every executor is connected, none of them to this node.  Raises Failed."""
        self.wait_for(
            lambda: not {"", node} & set(self.homes().values()), f"all executors have left {node} for others"
        )

    def ask_to_connect(self, environment_id: str, place: str = "") -> tuple[int, str]:
        """Ask for a harness's connection, by the balancer or at one place; return status and error code."""
        place = place or self.url.removeprefix("http://")
        headers = {"authorization": f"Bearer {self.executors[environment_id].token}"}
        body = json.dumps({"harness_public_key": KEY})
        status, answer = ask(place, f"/cloud/environment/{environment_id}/connect", body, headers)
        return status, json.loads(answer or b"{}").get("error", {}).get("code", "")

    def wait_for_reach(self, *environment_ids: str, place: str = "") -> None:
        """Wait until new harnesses of these environments are let in.  Raises Failed."""
        for name in environment_ids:
            asked = partial(self.ask_to_connect, name, place)
            self.wait_for(partial(_is_let_in, asked), f"harnesses of {name} are let in")

    def wait_for(self, met: Callable[[], object], what: str, seconds: float = 30.0) -> None:
        """Wait for something.  Raises Failed."""
        wait_for(met, what, seconds, self.pause)

    def close(self) -> None:
        """End everything, executors first."""
        for service in self._services():
            service.thaw()
            service.kill()

    def last_words(self) -> str:
        """Return what the processes said last."""
        return "".join(service.last_words() for service in self._services())

    def _services(self) -> list[Service]:
        executors = [each.service for each in (*self._replaced, *self.executors.values())]
        nodes = [each.service for each in self.nodes.values()]
        return [*executors, *nodes, self.balancer.service, *self.engine.services]


def _node_in(held: Reply) -> str:
    text = held.decode() if isinstance(held, bytes) else "-"
    return "" if text.startswith("-") else text.partition(":")[0]


def _is_let_in(asked: Callable[[], tuple[int, str]]) -> bool:
    return asked()[0] == 200


class _Asked:
    """What asks an engine on behalf of `EngineTokens`."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server

    def call(self, *commands: Command) -> list[Reply]:
        """Ask one thing after the other."""
        return [self._server.ask(*command) for command in commands]
