"""The engine as the model plays it: each step of its scripts, on plain data, with what it would publish.

`test_model_engine` compares it, step by step, with the scripts in a real Redis.
"""

from __future__ import annotations

from typing import NamedTuple

from execserver.relay.cluster.messages import Message, Moved, Registered
from execserver.relay.cluster.presence import Presence
from execserver.relay.cluster.residents import Answer, Claim, Release, Step
from execserver.relay.state import Outcome

LEASE_S = 3
Told = list[tuple[str, Message]]  # node and message


class Current(NamedTuple):
    """The current registration of the environment."""

    id: str
    key: str


class ModelEngine:
    """What an engine holds of one environment, and the leases of nodes.  Times are whole seconds."""

    def __init__(self) -> None:
        self.registration: Current | None = None
        self.superseded: set[str] = set()
        self.presence: Presence | None = None
        self.leases: dict[str, tuple[str, int]] = {}  # node -> epoch and end
        self.grants: dict[str, str] = {}  # authorization -> registration id

    def register(self, registration_id: str, key: str) -> tuple[Outcome, Told]:
        """Return the outcome, and what is published to whom."""
        if key in self.superseded:
            return Outcome.SUPERSEDED, []
        before, self.registration = self.registration, Current(registration_id, key)
        if before is None:
            return Outcome.FIRST, []
        taken_over = before.key != key
        if taken_over:
            self.superseded.add(before.key)
        there = self.presence
        told: Told = [(there.node, Registered("e", registration_id, taken_over))] if there else []
        return (Outcome.TAKEN_OVER if taken_over else Outcome.AGAIN), told

    def step(self, step: Step) -> tuple[Answer, Told]:
        """Do a node's step; return the answer, and what is published to whom."""
        if isinstance(step, Release):
            return self._release(step)
        return self._claim(step)

    def beat(self, node: str, epoch: str, now: int) -> str:
        """Return `new`, `held` or `taken`."""
        lease = self._lease(node, now)
        if lease is not None and lease != epoch:
            return "taken"
        self.leases[node] = (epoch, now + LEASE_S)
        return "new" if lease is None else "held"

    def alive(self, now: int) -> dict[str, str]:
        """Return node -> epoch of every lease."""
        return {node: epoch for node, (epoch, ends) in self.leases.items() if now < ends}

    def take(self, authorization: str) -> str | None:
        """Return the registration that an authorization was granted for, once."""
        return self.grants.pop(authorization, None)

    def _claim(self, step: Claim) -> tuple[Answer, Told]:
        if self.registration is None:
            return Answer.UNREGISTERED, []
        if self.registration.id != step.presence.registration_id:
            return Answer.REPLACED, []
        before = self.presence
        if before is not None and before.connected and before != step.presence and not step.fresh:
            return Answer.MOVED, []
        self.presence = step.presence
        if before is None or before.node == step.presence.node:
            return Answer.DONE, []
        return Answer.DONE, [(before.node, Moved("e", before))]

    def _release(self, step: Release) -> tuple[Answer, Told]:
        if self.presence == step.presence:
            self.presence = step.presence._replace(connected=False)
        return Answer.DONE, []

    def _lease(self, node: str, now: int) -> str | None:
        epoch, ends = self.leases.get(node, ("", 0))
        return epoch if now < ends else None
