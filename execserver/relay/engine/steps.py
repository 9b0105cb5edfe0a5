"""What a node does in the engine for its place in the cluster: commands, and what their replies mean."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from execserver.relay.cluster.messages import Message, encode
from execserver.relay.cluster.presence import (
    NODE_NAME,
    NodeRecord,
    Presence,
    node_record_of,
    presence_of,
)
from execserver.relay.cluster.residents import Answer, Claim, Step
from execserver.relay.engine.client import Engine, EngineRefused
from execserver.relay.engine.resp import Command
from execserver.relay.engine.scripts import BEAT, CLAIM, END, RELEASE
from execserver.relay.engine.state import ask_registration, registration_of, text_of
from execserver.relay.state import Registration

LEFT_MS = 10_000  # a lost websocket's node is remembered, to be told when its executor comes elsewhere
FORGET_NODE_S = 86_400  # the name of a node that is gone stands in the list for so long
MAX_NODES = 256  # the newest ones, if there are more
_SECONDS, _MICROS = re.compile("[0-9]{1,12}"), re.compile("[0-9]{1,6}")
_ANSWERS = {answer.value: answer for answer in Answer}


class Beat(NamedTuple):
    """What a beat found out."""

    held: str  # `held`, `new` or `taken`
    time: float  # of the engine, in seconds since 1970
    names: tuple[str, ...]  # of nodes, alive or not
    nodes: dict[str, NodeRecord]  # those of the names that were asked about and are alive


def beat(engine: Engine, node: str, record: NodeRecord, lease_s: float, asked: Sequence[str]) -> Beat:
    """Renew this node's lease, and look at those of other nodes.  Raises CannotServe."""
    now = time_of(engine)
    held, _, _, names, *records = engine.call(
        BEAT.on((f"n:{node}",), record.epoch, record.text, round(lease_s * 1000)),
        ("ZADD", "nodes", int(now), node),
        ("ZREMRANGEBYSCORE", "nodes", "-inf", int(now) - FORGET_NODE_S),
        ("ZREVRANGE", "nodes", 0, MAX_NODES - 1),
        *[("GET", f"n:{name}") for name in asked],
    )
    found = {name: node_record_of(text_of(each)) for name, each in zip(asked, records, strict=True)}
    return Beat(
        text_of(held),
        now,
        tuple(filter(NODE_NAME.fullmatch, map(text_of, names[:MAX_NODES])))
        if isinstance(names, list)
        else (),
        {name: each for name, each in found.items() if each is not None},
    )


def end_lease(engine: Engine, node: str, epoch: str) -> None:
    """Give this node's name back.  Raises CannotServe."""
    engine.call(END.on((f"n:{node}",), epoch), ("ZREM", "nodes", node))


def tell(engine: Engine, steps: Sequence[Step]) -> list[Answer | None]:
    """Do some steps; return their answers, None for one that failed by itself.  Raises EngineSilent."""
    replies = engine.ask(*map(_command, steps))
    return [_ANSWERS.get(text_of(reply)) for reply in replies]


def presence(engine: Engine, environment_id: str) -> Presence | None:
    """Return where an environment's executor is connected, or was until now.  Raises CannotServe."""
    (text,) = engine.call(_ask_presence(environment_id))
    return presence_of(text_of(text))


def whereabouts(engine: Engine, environment_id: str) -> tuple[Registration | None, Presence | None]:
    """Return an environment's registration and its `presence`, in one round trip.  Raises CannotServe."""
    fields, text = engine.call(ask_registration(environment_id), _ask_presence(environment_id))
    return registration_of(environment_id, fields), presence_of(text_of(text))


def send(engine: Engine, node: str, message: Message) -> None:
    """Tell another node something; nobody knows whether it hears.  Raises CannotServe."""
    engine.call(("PUBLISH", f"node:{node}", encode(message)))


def time_of(engine: Engine) -> float:
    """Return the engine's time, in seconds since 1970.  Raises CannotServe."""
    (moment,) = engine.call(("TIME",))
    if isinstance(moment, list) and len(moment) == 2:
        seconds, micros = map(text_of, moment)
        if _SECONDS.fullmatch(seconds) and _MICROS.fullmatch(micros):
            return int(seconds) + int(micros) / 1e6
    raise EngineRefused("the engine does not know the time")


def _ask_presence(environment_id: str) -> Command:
    return ("GET", f"p:{{{environment_id}}}")


def _command(step: Step) -> Command:
    name = step.environment_id
    keys = (f"r:{{{name}}}", f"p:{{{name}}}")
    text = step.presence.text
    if isinstance(step, Claim):
        return CLAIM.on(keys, step.presence.registration_id, text, "fresh" if step.fresh else "again", name)
    return RELEASE.on(keys[1:], text, LEFT_MS)
