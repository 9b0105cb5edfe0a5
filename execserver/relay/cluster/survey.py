"""What a cluster looks like at the moment, read from its engine: for operators."""

from __future__ import annotations

import re
from typing import NamedTuple

from execserver.relay.cluster.presence import NODE_NAME, node_record_of
from execserver.relay.engine import steps
from execserver.relay.engine.client import Engine
from execserver.relay.engine.resp import Reply
from execserver.relay.engine.state import EngineState, text_of

GONE = "gone"  # the state of a node that is not alive and has not taken its leave


class EngineFacts(NamedTuple):
    """The engine itself."""

    version: str
    replicas: int
    memory_bytes: int
    clients: int


class NodeFacts(NamedTuple):
    """One node; `state` is `up`, `draining` or `gone`."""

    name: str
    state: str
    beat_age_s: float
    executors: int = 0
    harnesses: int = 0
    streams: int = 0
    url: str = ""


class PlaceFacts(NamedTuple):
    """One environment; empty texts: no executor has registered, or none is connected."""

    environment_id: str
    registration_id: str
    node: str


class Survey(NamedTuple):
    """All of it."""

    engine: EngineFacts
    nodes: list[NodeFacts]
    environment: PlaceFacts | None


def survey(engine: Engine, environment_id: str | None) -> Survey:
    """Ask the engine.  Raises CannotServe."""
    info, now = engine.call(("INFO",))[0], steps.time_of(engine)
    nodes = _nodes(engine, now)
    place = None if environment_id is None else _place(engine, environment_id, nodes)
    return Survey(_engine_facts(text_of(info)), nodes, place)


def _nodes(engine: Engine, now: float) -> list[NodeFacts]:
    (listed,) = engine.call(("ZREVRANGE", "nodes", 0, steps.MAX_NODES - 1, "WITHSCORES"))
    words = list(map(text_of, listed)) if isinstance(listed, list) else []
    pairs = zip(words[::2], words[1::2], strict=False)
    names = {name: beat for name, beat in pairs if NODE_NAME.fullmatch(name)}
    if not names:
        return []
    records: list[Reply] = engine.call(*[("GET", f"n:{name}") for name in names])
    found = []
    for (name, beat), text in sorted(zip(names.items(), records, strict=True)):
        age = max(0.0, now - float(beat)) if re.fullmatch(r"\d{1,12}", beat) else 0.0
        record = node_record_of(text_of(text))
        if record is None:
            found.append(NodeFacts(name, GONE, age))
        else:
            counts = (record.executors, record.harnesses, record.streams)
            found.append(NodeFacts(name, record.state.value, age, *counts, record.url))
    return found


def _place(engine: Engine, environment_id: str, nodes: list[NodeFacts]) -> PlaceFacts:
    registration = EngineState(engine).registration(environment_id)
    if registration is None:
        return PlaceFacts(environment_id, "", "")
    presence = steps.presence(engine, environment_id)
    is_there = (
        presence is not None
        and presence.connected
        and presence.registration_id == registration.registration_id
        and any(node.name == presence.node and node.state != GONE for node in nodes)
    )
    node = presence.node if presence is not None and is_there else ""
    return PlaceFacts(environment_id, registration.registration_id, node)


def _engine_facts(info: str) -> EngineFacts:
    facts = dict(re.findall(r"^(\w+):([ -~]{0,64})", info, re.MULTILINE))
    name = "Valkey" if "valkey_version" in facts else "Redis"
    version = facts.get("valkey_version") or facts.get("redis_version", "?")
    replicas, memory, clients = (
        int(facts.get(key, "0")) if re.fullmatch("[0-9]{1,18}", facts.get(key, "0")) else 0
        for key in ("connected_slaves", "used_memory", "connected_clients")
    )
    return EngineFacts(f"{name} {version}", replicas, memory, clients)
