"""Decisions about one environment: where a harness has to go, and whether one that came is at the right node.

Nothing of what a harness sends is trusted: its URL's `node=` only tells the two reasons apart for which it
came to the wrong node, and at worst has its own environment's executor connect again.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from execserver.relay.cluster.leases import Leases
from execserver.relay.cluster.presence import NodeRecord, NodeState, Presence


class Place(NamedTuple):
    """The living node where the executor is."""

    presence: Presence
    record: NodeRecord

    @property
    def is_leaving(self) -> bool:
        """True if the node shuts down: the executor will be elsewhere in a moment."""
        return self.record.state is NodeState.DRAINING


def place_of(presence: Presence | None, registration_id: str, leases: Leases, now: float) -> Place | None:
    """Return where the executor of a registration is; None if it is connected to no living node."""
    if presence is None or not presence.connected or presence.registration_id != registration_id:
        return None
    record = leases.record(presence.node, presence.epoch, now)
    return None if record is None else Place(presence, record)


class Entry(Enum):
    """What becomes of a harness with a valid credential."""

    ADMIT = "admit"
    WRONG_NODE = "wrong node"  # it asks again, and gets a URL that leads to the executor
    RECALL = "recall"  # the same; and the executor comes away from a node that clients do not reach


def judge(executor_is_here: bool, place: Place | None, own_node: str, hint: str | None) -> Entry:
    """Judge a harness at this node by its URL's hint, the node that its URL was meant for."""
    if executor_is_here:
        return Entry.ADMIT
    # Its hint was right, and yet it came here: whatever leads clients to nodes does not reach that one.
    if place is not None and hint == place.presence.node != own_node:
        return Entry.RECALL
    return Entry.WRONG_NODE
