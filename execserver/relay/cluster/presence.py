"""Where an executor is connected, and what a node says of itself, as the texts that stand in the engine.

A presence counts only while its node's epoch is leased.  The claim numbers the websockets of one node: an
order that speaks of an earlier one never ends a later one.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}")
_EPOCH = "[0-9a-f]{16}"
_REGISTRATION = r"[A-Za-z0-9_-]{1,64}"
_PRESENCE = re.compile(rf"(-?)({NODE_NAME.pattern}):({_EPOCH}):(\d{{1,18}})\|({_REGISTRATION})")
_NODE = re.compile(rf"({_EPOCH})\|(up|draining)\|(\d{{1,9}})\|(\d{{1,9}})\|(\d{{1,9}})\|([!-~]{{0,512}})")


class Presence(NamedTuple):
    """The websocket of an environment's executor: at which node, of which registration."""

    node: str
    epoch: str  # of the node's process
    claim: int  # counts up at this node, for each executor that connects
    registration_id: str
    connected: bool = True  # False for a while after it was lost

    @property
    def text(self) -> str:
        """The form that the engine holds."""
        left = "" if self.connected else "-"
        return f"{left}{self.node}:{self.epoch}:{self.claim}|{self.registration_id}"


class NodeState(Enum):
    """Whether a node takes executors."""

    UP = "up"
    DRAINING = "draining"


class NodeRecord(NamedTuple):
    """What a node says of itself with each beat."""

    epoch: str
    state: NodeState
    executors: int = 0
    harnesses: int = 0
    streams: int = 0
    url: str = ""  # leads to this very node; empty if only the common URL does

    @property
    def text(self) -> str:
        """The form that the engine holds."""
        counts = f"{self.executors}|{self.harnesses}|{self.streams}"
        return f"{self.epoch}|{self.state.value}|{counts}|{self.url}"


def presence_of(text: str) -> Presence | None:
    """Read a presence; None if the text is none, whoever wrote it."""
    found = _PRESENCE.fullmatch(text)
    if found is None:
        return None
    left, node, epoch, claim, registration_id = found.groups()
    return Presence(node, epoch, int(claim), registration_id, not left)


def node_record_of(text: str) -> NodeRecord | None:
    """Read a node record; None if the text is none."""
    found = _NODE.fullmatch(text)
    if found is None:
        return None
    epoch, state, executors, harnesses, streams, url = found.groups()
    return NodeRecord(epoch, NodeState(state), int(executors), int(harnesses), int(streams), url)
