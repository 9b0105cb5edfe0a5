"""Puts together what makes a relay a node of a cluster.  Loaded only where there is an engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from execserver.http_client.trust import NoTrust
from execserver.relay.cluster.node import ClusterNode
from execserver.relay.engine.address import Credentials, EngineAddress
from execserver.relay.engine.client import Engine
from execserver.relay.engine.line import Dialer
from execserver.relay.engine.scripts import ALL
from execserver.relay.engine.state import EngineState
from execserver.relay.engine.tokens import EngineTokens
from execserver.relay.errors import CannotServe
from execserver.relay.limits import Limits
from execserver.relay.metrics import Metrics
from execserver.relay.rendezvous import Rendezvous


class Membership(NamedTuple):
    """Which cluster a relay belongs to, and as what."""

    address: EngineAddress
    credentials: Credentials
    node: str
    url: str = ""  # leads to this very node; empty if only the common URL does


class EngineClock:
    """The engine's time, which all nodes go by: a grant of one is judged by another."""

    def __init__(self) -> None:
        self.ahead = 0.0  # of the clock of this machine, in seconds

    def now(self) -> float:
        """Return seconds since 1970."""
        return time.time() + self.ahead


class Joining:
    """The engine of a cluster, and what is kept there, before the node itself is made."""

    def __init__(self, membership: Membership, metrics: Metrics, environ: Mapping[str, str]) -> None:
        """Connects to nothing yet.  Raises CannotServe."""
        self._membership = membership
        self._dialer = dialer(membership.address, membership.credentials, environ)
        self._engine = Engine(self._dialer, ALL, lambda result: metrics.count("engine_calls", result))
        self.clock = EngineClock()
        self.state = EngineState(self._engine)
        self.tokens = EngineTokens(self._engine)

    def node(self, rendezvous: Rendezvous, limits: Limits, on_name_lost: Callable[[], None]) -> ClusterNode:
        """Return the node; `on_name_lost` is called when another process has taken its name."""
        name, url = self._membership.node, self._membership.url
        node = ClusterNode(name, url, self._engine, self._dialer, self.clock, rendezvous, limits)
        node.on_name_lost = on_name_lost
        return node


def dialer(address: EngineAddress, credentials: Credentials, environ: Mapping[str, str]) -> Dialer:
    """Return what connects to an engine.  Raises CannotServe."""
    try:
        return Dialer(address, credentials, environ)
    except NoTrust as error:
        raise CannotServe(str(error)) from None
