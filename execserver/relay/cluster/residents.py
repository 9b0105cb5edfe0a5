"""The executors that are connected to one node, and what the engine is to know of them.

Each change makes the environment due; the node takes what is due, does the step in the engine, and comes back
with the answer.  A step that failed stays due, so every order of losses and returns ends in the same state:
a presence for each executor here, and for no other.

    arrived ──► due: Claim(fresh) ──► claimed
                                  └─► replaced, unregistered: its websocket ends
    left    ──► due: Release ───────► gone
    all_again ► due: Claim ─────────► claimed
                                  └─► moved: everybody of the environment goes to the other node

A *fresh* claim overrides whatever presence there is: the newest websocket of an executor is the real one.  A
repeated claim gives way to the presence of another node, which can only have come later.  `all_again` makes
good what was lost: messages while the subscription was down, writes that a failed engine forgot.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from typing import NamedTuple

from execserver.relay.cluster.messages import Message, Moved, Recall, Registered
from execserver.relay.cluster.presence import Presence

RECALL_AGAIN_S = 5.0  # an executor that was sent away is not sent away again before
_MAX_RECALLED = 4096  # environments remembered for that; at the limit the oldest is forgotten


class Claim(NamedTuple):
    """Tell the engine that an executor is connected here."""

    environment_id: str
    presence: Presence
    fresh: bool


class Release(NamedTuple):
    """Tell the engine that this executor's websocket is lost."""

    environment_id: str
    presence: Presence


Step = Claim | Release


class Answer(Enum):
    """The engine's answer to a step."""

    DONE = "done"
    MOVED = "moved"
    REPLACED = "replaced"
    UNREGISTERED = "unregistered"


class End(Enum):
    """Whose websockets of an environment end."""

    EVERYBODY = "everybody"  # with 1001: they find the other node
    EXECUTOR = "executor"  # with 1001: it comes again
    REPLACED = "replaced"  # the executor's: another registration holds
    TAKEN_OVER = "taken over"  # the same, and its streams are reset: another key holds


class Order(NamedTuple):
    """What has to happen at this node."""

    environment_id: str
    end: End


class _Resident:
    __slots__ = ("claimed", "presence")

    def __init__(self, presence: Presence) -> None:
        self.presence = presence
        self.claimed = False


class Residents:
    """The executors of one node."""

    def __init__(self, node: str, epoch: str) -> None:
        self._node = node
        self._epoch = epoch
        self._claims = 0
        self._here: dict[str, _Resident] = {}
        # What the engine may still hold of a websocket that is gone.  Bounded as `_here` is: an environment
        # stands here once, and only if its executor was connected.
        self._gone: dict[str, Presence] = {}
        self._due: OrderedDict[str, None] = OrderedDict()
        self._recalled: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._here)

    def presence(self, environment_id: str) -> Presence | None:
        """Return the presence of an executor that is connected here."""
        resident = self._here.get(environment_id)
        return resident.presence if resident else None

    def arrived(self, environment_id: str, registration_id: str) -> Presence:
        """Note that an executor connected; it takes the place of an earlier websocket."""
        self._claims += 1
        presence = Presence(self._node, self._epoch, self._claims, registration_id)
        self._here[environment_id] = _Resident(presence)
        self._gone.pop(environment_id, None)  # the new claim replaces that presence
        self._due[environment_id] = None
        return presence

    def left(self, environment_id: str) -> None:
        """Note that the executor's websocket is lost."""
        resident = self._here.pop(environment_id, None)
        if resident is not None:
            self._gone[environment_id] = resident.presence
            self._due[environment_id] = None

    def all_again(self) -> None:
        """Have the engine asked about every executor here: it may have forgotten or changed something."""
        for environment_id in self._here:
            self._due[environment_id] = None

    @property
    def is_due(self) -> bool:
        """True if the engine has to be told something."""
        return bool(self._due)

    def due(self, limit: int) -> list[Step]:
        """Take up to `limit` steps; each has to be `answered`, or `failed`."""
        steps: list[Step] = []
        while self._due and len(steps) < limit:
            environment_id, _ = self._due.popitem(last=False)
            resident = self._here.get(environment_id)
            if resident is not None:
                steps.append(Claim(environment_id, resident.presence, not resident.claimed))
            elif environment_id in self._gone:
                steps.append(Release(environment_id, self._gone[environment_id]))
        return steps

    def failed(self, step: Step) -> None:
        """Note that the engine did not answer a step; whether it was done is not known."""
        self._due[step.environment_id] = None

    def answered(self, step: Step, answer: Answer) -> Order | None:
        """Take the answer to a step; return what follows from it."""
        environment_id = step.environment_id
        if isinstance(step, Release):
            if self._gone.get(environment_id) == step.presence:
                del self._gone[environment_id]
            return None
        resident = self._here.get(environment_id)
        if resident is None or resident.presence != step.presence:
            return None  # changed meanwhile, and therefore due again
        if answer is Answer.DONE:
            resident.claimed = True
            return None
        ends = {
            Answer.MOVED: End.EVERYBODY,
            Answer.REPLACED: End.REPLACED,
            Answer.UNREGISTERED: End.EXECUTOR,
        }
        return Order(environment_id, ends[answer])

    def heard(self, message: Message, now: float) -> Order | None:
        """Take a message to this node; return what follows from it."""
        if isinstance(message, Moved):
            return self._moved(message)
        resident = self._here.get(message.environment_id)
        if resident is None:
            return None
        if isinstance(message, Registered):
            if message.registration_id == resident.presence.registration_id:
                return None  # the new registration's own executor is here already
            return Order(message.environment_id, End.TAKEN_OVER if message.taken_over else End.REPLACED)
        return self._recall(message, resident.presence, now)

    def _moved(self, message: Moved) -> Order | None:
        environment_id, before = message
        if (before.node, before.epoch) != (self._node, self._epoch):
            return None
        resident = self._here.get(environment_id)
        if resident is not None and resident.presence.claim > before.claim:
            return None  # late: the executor has come back here since
        self._gone.pop(environment_id, None)  # the engine holds the new presence
        return Order(environment_id, End.EVERYBODY)

    def _recall(self, message: Recall, presence: Presence, now: float) -> Order | None:
        if message.presence != presence:
            return None
        environment_id = message.environment_id
        before = self._recalled.pop(environment_id, None)
        if before is not None and now - before < RECALL_AGAIN_S:
            self._recalled[environment_id] = before
            return None
        self._recalled[environment_id] = now
        while len(self._recalled) > _MAX_RECALLED:
            self._recalled.popitem(last=False)
        return Order(environment_id, End.EXECUTOR)
