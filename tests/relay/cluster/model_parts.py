"""Those who act in the model: a node with the relay's own rules, an executor, a harness."""

from __future__ import annotations

from dataclasses import dataclass, field

from execserver.relay.cluster.leases import Leases
from execserver.relay.cluster.residents import Residents
from tests.relay.cluster.model_engine import LEASE_S


@dataclass
class ModelNode:
    """One relay: its rules, and which websockets end at it."""

    name: str
    number: int = 0  # of its process
    runs: bool = True
    cut: bool = False  # from the engine: also what a stopped process looks like
    front_cut: bool = False  # from balancer, executors and harnesses
    dropped: bool = False  # by the balancer, which leaves what is connected alone
    again: bool = False  # the subscription is new
    linked: str | None = None  # the registration of the executor whose websocket ends here, dead or alive
    seen: int = 0
    residents: Residents = field(init=False)
    leases: Leases = field(init=False)

    def __post_init__(self) -> None:
        self.begin()

    @property
    def epoch(self) -> str:
        """The epoch of its process."""
        return f"{ord(self.name[-1]):08x}{self.number:08x}"

    def begin(self) -> None:
        """Start its process anew."""
        self.number += 1
        self.runs, self.linked, self.again = True, None, False
        self.residents, self.leases = Residents(self.name, self.epoch), Leases(LEASE_S)


@dataclass
class ModelExecutor:
    """One executor process: its key, its registration, and the node that it believes to be connected to."""

    key: str
    registrations: int = 0
    registration: str | None = None
    at: str | None = None
    ended: bool = False


@dataclass
class ModelHarness:
    """A harness on its way to the executor."""

    grants: int = 0
    hint: str | None = None  # the node that its URL names, once granted
    authorization: str | None = None
    registration: str | None = None
    at: str | None = None
