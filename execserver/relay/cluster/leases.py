"""Leases: how long a node may count on its own, and which other nodes are alive.

A lease is judged by the time its beat was *sent*: the engine started to count later, so a node never takes
its lease for longer than the others do.  Times are arguments, in seconds of a clock that does not jump.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from execserver.relay.cluster.presence import NodeRecord


class Phase(IntEnum):
    """How long a node has been without the engine; what each stands for is the node's to do."""

    HELD = 0  # the lease is good
    LOST = 1  # others do not count on this node any more; what is joined here goes on
    ISOLATED = 2  # takes nobody; idle executors are sent to other nodes
    OVER = 3  # revoked tokens could be in use: everybody has to go


class OwnLease:
    """The lease of this node."""

    def __init__(self, lease_s: float, isolation_s: float, grace_s: float, now: float) -> None:
        self._lease_s = lease_s
        self._isolation_s = isolation_s
        self._grace_s = grace_s
        self._renewed = now - lease_s  # not held before the first beat

    def renewed(self, sent: float) -> None:
        """Note that a beat was answered, by the time it was sent."""
        self._renewed = max(self._renewed, sent)

    def ends(self) -> float:
        """Return the time at which the lease is lost without another beat."""
        return self._renewed + self._lease_s

    def phase(self, now: float) -> Phase:
        """Return the phase at a time."""
        without = now - self.ends()
        if without < 0:
            return Phase.HELD
        if without >= self._grace_s:
            return Phase.OVER
        return Phase.ISOLATED if without >= self._isolation_s else Phase.LOST


class Leases:
    """The nodes that were alive at the last beat."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._nodes: dict[str, NodeRecord] = {}
        self._seen = float("-inf")

    def saw(self, nodes: Mapping[str, NodeRecord], now: float) -> None:
        """Take the records that the engine held; the nodes that are not among them are gone."""
        self._nodes = dict(nodes)
        self._seen = now

    def record(self, node: str, epoch: str, now: float) -> NodeRecord | None:
        """Return what a living node says of itself; None if that epoch is not leased, as far as is known."""
        record = self._nodes.get(node)
        if record is None or record.epoch != epoch or now - self._seen >= self._lease_s:
            return None
        return record

    def count(self, now: float) -> int:
        """Return the number of living nodes."""
        return len(self._nodes) if now - self._seen < self._lease_s else 0
