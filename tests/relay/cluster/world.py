"""A small world for the model: nodes with the relay's own rules, executors, a harness, what can go wrong.

One environment.  A state is a `World`; `moves` names what can happen next, `do` lets it happen.  Nothing here
decides what a node does: that is `Residents`, `Leases`, `place_of` and `judge`.
"""

from __future__ import annotations

from collections.abc import Iterator

from execserver.relay.cluster.messages import Message, Recall, decode, encode
from execserver.relay.cluster.placing import Entry, Place, judge, place_of
from execserver.relay.cluster.presence import NodeRecord, NodeState
from execserver.relay.cluster.residents import Answer, End, Order, Step
from execserver.relay.state import Outcome
from tests.relay.cluster.model_engine import LEASE_S, ModelEngine
from tests.relay.cluster.model_parts import ModelExecutor, ModelHarness, ModelNode

ENVIRONMENT = "e"

FAULTS = (
    *("kill", "cut", "front_cut", "drop", "unsubscribe", "silent", "unheard", "repeat", "forget", "wait"),
    "takeover",  # by another executor
)

Move = tuple[str, ...]


class World:
    """Everything; `budget` says how often each kind of fault may still happen."""

    def __init__(self, budget: dict[str, int], nodes: int = 2) -> None:
        self.now = 0
        self.engine = ModelEngine()
        self.nodes = {f"n{number}": ModelNode(f"n{number}") for number in range(nodes)}
        self.executors = [ModelExecutor("A"), ModelExecutor("B")]
        self.harness = ModelHarness()
        self.flying: list[tuple[str, str]] = []  # node and line
        self.validated: dict[str, int] = {}
        self.budget = dict(budget)
        self.grants = 2  # that the harness may ask for; it may ask as often as it likes while all settles
        for node in self.nodes.values():
            self.beat(node)

    # What may happen next.

    def moves(self) -> Iterator[Move]:
        """Name every move that would change something."""
        for node in self.nodes.values():
            yield from self._moves_of(node)
        for number, executor in enumerate(self.executors):
            yield from self.moves_of_executor(str(number), executor)
        for number, (name, _) in enumerate(self.flying):
            if self.hears(self.nodes[name]):
                yield ("deliver", str(number))
                if self.budget["repeat"]:
                    yield ("repeat", str(number))
        yield from self.moves_of_harness()
        if self.budget["forget"] and self.engine.registration is not None:
            yield ("forget",)
        if self.budget["wait"]:
            yield ("wait",)

    def _moves_of(self, node: ModelNode) -> Iterator[Move]:
        name, budget = node.name, self.budget
        if not node.runs:
            yield ("start", name)
            return
        if self.hears(node):
            if node.residents.is_due:
                yield ("steps", name)
                yield from ((fault, name) for fault in ("silent", "unheard") if budget[fault])
            if node.again:
                yield ("again", name)
            if budget["unsubscribe"]:
                yield ("unsubscribe", name)
        if node.linked is not None and not self.is_live(node):
            yield ("node_notices", name)
        if budget["kill"]:
            yield ("kill", name)
        if node.cut or budget["cut"]:
            yield ("heal" if node.cut else "cut", name)
        if node.front_cut or budget["front_cut"]:
            yield ("front_heal" if node.front_cut else "front_cut", name)
        if budget["drop"] and not node.dropped:
            yield ("drop", name)

    def moves_of_executor(self, number: str, executor: ModelExecutor) -> Iterator[Move]:
        """Name what an executor can do."""
        if executor.ended:
            return
        if executor.at is not None:
            if not self.has_way(executor):
                yield ("executor_notices", number)
            return
        if number == "1" and not executor.registrations and not self.budget["takeover"]:
            return
        for node in self.reachable():
            if self.hears(node):
                yield ("register" if executor.registration is None else "arrive", number, node.name)

    def moves_of_harness(self) -> Iterator[Move]:
        """Name what the harness can do."""
        harness = self.harness
        if harness.at is not None:
            yield ("leave",)
            if harness.authorization is not None:
                yield ("validate",)
        elif harness.hint is not None:
            for node in self._balanced(harness.hint):
                if self.hears(node):
                    yield ("enter", node.name)
        elif harness.grants < self.grants:
            for node in self.reachable():
                if self.hears(node):
                    yield ("connect", node.name)

    # What happens then.

    def do(self, move: Move) -> None:
        """Let one move happen."""
        kind, *words = move
        if kind in self.budget:
            self.budget[kind] -= 1
        getattr(self, f"do_{kind}")(*words)

    def do_steps(self, name: str) -> None:
        """The node tells the engine what is due."""
        node = self.nodes[name]
        for step in node.residents.due(10):
            self._follow(node, node.residents.answered(step, self._engine_step(step)))

    def do_silent(self, name: str) -> None:
        """The engine did the steps, and its answer was lost."""
        node = self.nodes[name]
        for step in node.residents.due(10):
            self._engine_step(step)
            node.residents.failed(step)

    def do_unheard(self, name: str) -> None:
        """The engine never heard of the steps."""
        residents = self.nodes[name].residents
        for step in residents.due(10):
            residents.failed(step)

    def do_deliver(self, number: str) -> None:
        """A message arrives, out of order perhaps."""
        name, line = self.flying.pop(int(number))
        self._hear(self.nodes[name], line)

    def do_repeat(self, number: str) -> None:
        """A message arrives, and will once more."""
        name, line = self.flying[int(number)]
        self._hear(self.nodes[name], line)

    def do_unsubscribe(self, name: str) -> None:
        """The subscription breaks: what is on its way is lost, and the node knows."""
        self.flying = [each for each in self.flying if each[0] != name]
        self.nodes[name].again = True

    def do_again(self, name: str) -> None:
        """The node has subscribed anew."""
        self.nodes[name].again = False
        self.nodes[name].residents.all_again()

    def do_kill(self, name: str) -> None:
        """The process is gone."""
        node = self.nodes[name]
        node.runs, node.linked = False, None
        self.flying = [each for each in self.flying if each[0] != name]
        if self.harness.at == name:
            self.do_leave()

    def do_start(self, name: str) -> None:
        """Another process has its place."""
        self.nodes[name].begin()
        self.beat(self.nodes[name])

    def do_cut(self, name: str) -> None:
        """The engine is out of reach, which nobody is told."""
        self.nodes[name].cut = True

    def do_heal(self, name: str) -> None:
        """The engine is there again."""
        self.nodes[name].cut = False
        self.beat(self.nodes[name])

    def do_front_cut(self, name: str) -> None:
        """Packets to executors, harnesses and the balancer vanish."""
        self.nodes[name].front_cut = True

    def do_front_heal(self, name: str) -> None:
        """They arrive again."""
        self.nodes[name].front_cut = False

    def do_drop(self, name: str) -> None:
        """The balancer sends nobody there any more."""
        self.nodes[name].dropped = True

    def do_forget(self) -> None:
        """The engine comes back empty: every connection to it is new."""
        self.engine = ModelEngine()
        self.flying.clear()
        for node in self.nodes.values():
            node.again = node.runs
            if self.hears(node):
                self.beat(node)

    def do_wait(self) -> None:
        """A lease's time passes; who can, beats meanwhile."""
        for _ in range(LEASE_S):
            self.now += 1
            for node in self.nodes.values():
                if self.hears(node):
                    self.beat(node)

    def do_node_notices(self, name: str) -> None:
        """The node finds out that a websocket is dead."""
        self._unlink(self.nodes[name])

    def do_executor_notices(self, number: str) -> None:
        """The executor finds out that its websocket is dead."""
        self.executors[int(number)].at = None

    def do_register(self, number: str, name: str) -> None:
        """An executor registers."""
        executor = self.executors[int(number)]
        executor.registrations += 1
        wanted = f"{executor.key}{executor.registrations}"
        outcome, told = self.engine.register(wanted, executor.key)
        if outcome is Outcome.SUPERSEDED:
            executor.ended = True
            return
        executor.registration = wanted
        self._publish(told)

    def do_arrive(self, number: str, name: str) -> None:
        """An executor connects with the URL of its registration."""
        executor, node = self.executors[int(number)], self.nodes[name]
        current = self.engine.registration
        if current is None or current.id != executor.registration:
            executor.registration = None  # 401: it registers again
            return
        assert executor.registration is not None
        self._unlink(node)  # its earlier websocket at this node, if there is one
        node.linked, executor.at = executor.registration, name
        node.residents.arrived(ENVIRONMENT, executor.registration)

    def do_connect(self, name: str) -> None:
        """The harness asks where to go."""
        harness, place = self.harness, self.place(self.nodes[name])
        if place is None or self.engine.registration is None:
            return  # 503 or 404: it asks again
        harness.grants += 1
        harness.authorization = f"a{harness.grants}"
        harness.hint, harness.registration = place.presence.node, self.engine.registration.id
        self.engine.grants[harness.authorization] = harness.registration

    def do_enter(self, name: str) -> None:
        """The harness comes to a node with its URL."""
        harness, node = self.harness, self.nodes[name]
        place, hint = self.place(node), harness.hint
        current = self.engine.registration
        harness.hint = None
        if current is None or current.id != harness.registration:
            return  # 401: granted for another registration
        entry = judge(node.linked == current.id, place, node.name, hint)
        if entry is Entry.ADMIT:
            harness.at = name
        elif entry is Entry.RECALL and place is not None:
            self._publish([(place.presence.node, Recall(ENVIRONMENT, place.presence))])

    def do_leave(self) -> None:
        """The harness gives its websocket up."""
        self.harness.at = self.harness.hint = None

    def do_validate(self) -> None:
        """The executor asks about the harness, as often as an attacker has it ask."""
        harness = self.harness
        assert harness.authorization is not None
        granted = self.engine.take(harness.authorization)
        current = self.engine.registration
        if granted is not None and current is not None and granted == current.id:
            self.validated[harness.authorization] = self.validated.get(harness.authorization, 0) + 1

    # Parts of it.

    def _engine_step(self, step: Step) -> Answer:
        answer, told = self.engine.step(step)
        self._publish(told)
        return answer

    def _publish(self, told: list[tuple[str, Message]]) -> None:
        for name, message in told:
            node = self.nodes[name]
            # Nobody hears what is published while nobody listens; a node that is cut still seems to listen.
            if node.runs and not node.again:
                self.flying.append((name, encode(message)))

    def _hear(self, node: ModelNode, line: str) -> None:
        message = decode(line)
        assert message is not None, line
        self._follow(node, node.residents.heard(message, self.now))

    def _follow(self, node: ModelNode, order: Order | None) -> None:
        if order is None:
            return
        if order.end is End.EVERYBODY and self.harness.at == node.name:
            self.do_leave()
        self._unlink(node)

    def _unlink(self, node: ModelNode) -> None:
        if node.linked is None:
            return
        for executor in self.executors:
            if executor.at == node.name and self.has_way(executor):
                executor.at = None  # the websocket was alive, so its other end sees this
        node.linked = None
        node.residents.left(ENVIRONMENT)

    def beat(self, node: ModelNode) -> None:
        """Renew the lease, and look at the others."""
        if self.engine.beat(node.name, node.epoch, self.now) == "new":
            node.residents.all_again()
        records = {
            name: NodeRecord(epoch, NodeState.UP) for name, epoch in self.engine.alive(self.now).items()
        }
        node.leases.saw(records, self.now)

    def place(self, node: ModelNode) -> Place | None:
        """Return where a node believes the executor to be."""
        current = self.engine.registration
        return place_of(self.engine.presence, current.id if current else "", node.leases, self.now)

    def hears(self, node: ModelNode) -> bool:
        """Tell whether a node has the engine."""
        return node.runs and not node.cut

    def is_live(self, node: ModelNode) -> bool:
        """Tell whether the websocket that ends at a node has an executor at its other end."""
        return any(each.at == node.name and self.has_way(each) for each in self.executors)

    def has_way(self, executor: ModelExecutor) -> bool:
        """Tell whether an executor's websocket has the node at its other end."""
        node = self.nodes[executor.at or ""]
        return node.runs and not node.front_cut and node.linked == executor.registration

    def reachable(self) -> list[ModelNode]:
        """Return the nodes that new connections come to."""
        return [node for node in self.nodes.values() if node.runs and not (node.front_cut or node.dropped)]

    def _balanced(self, hint: str) -> list[ModelNode]:
        """Return where the balancer may send who asks for a node: anywhere if that is not reachable."""
        reachable = self.reachable()
        return [node for node in reachable if node.name == hint] or reachable

    # What must hold.

    def check(self) -> None:
        """Fail if something is wrong now."""
        assert all(count == 1 for count in self.validated.values()), "an authorization was good twice"
