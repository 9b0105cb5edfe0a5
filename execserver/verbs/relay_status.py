"""`execserver relay status`: the nodes of a cluster, as their shared engine knows them."""

from __future__ import annotations

import sys

from execserver.arguments import Mistake, Program, missing, read_table
from execserver.leaving import failure
from execserver.verbs import relay_engine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.relay.cluster.survey import Survey

HELP = """\
Show the relays that share an engine: which are alive, which drain, and what is connected where.

Usage: execserver relay status --engine <URL> [OPTIONS]

Options:
  --engine <URL>            The engine that the relays share; see `relay --help`.
  --engine-auth <FILE>      User and password for the engine; see `relay --help`.
  --environment-id <ID>     Show also where this environment's executor is connected.
  --json                    Write one JSON object instead of a table.
  -h, --help                Print this text and exit.

The counts of a node are a few seconds old. The exit status is 0 if every node is alive, and 1 if one is not
or the engine cannot be asked. A node that took its leave is not listed any more.
"""

_PROGRAM = "execserver relay status"


def show(given: list[str]) -> int:
    """Print the table or the object; return 0, or 1 if a node is not alive."""
    program = Program(_PROGRAM, read_table(HELP, choices={}), lambda: HELP, usage="--engine <URL> [OPTIONS]")
    options = program.parse(given).options
    if "--engine" not in options:
        raise program.mistaken(missing(("--engine <URL>",)))
    environment_id = options.get("--environment-id")
    from execserver.relay.cluster.survey import survey
    from execserver.relay.errors import CannotServe
    from execserver.relay.tokens import ENVIRONMENT_ID

    if environment_id is not None and not ENVIRONMENT_ID.fullmatch(environment_id):
        raise program.mistaken(Mistake(f"invalid value '{environment_id}' for '--environment-id'", None))
    try:
        engine = relay_engine.connected(options)
        try:
            found = survey(engine, environment_id)
        finally:
            engine.close()
    except CannotServe as error:
        raise failure(str(error)) from None
    sys.stdout.write(_as_json(found) if "--json" in options else _as_table(found))
    return 0 if all(node.state != "gone" for node in found.nodes) else 1


def _as_json(found: Survey) -> str:
    import json

    nodes = [node._asdict() for node in found.nodes]
    shown: dict[str, object] = {"engine": found.engine._asdict(), "nodes": nodes}
    if found.environment is not None:
        shown["environment"] = found.environment._asdict()
    return json.dumps(shown) + "\n"


def _as_table(found: Survey) -> str:
    engine = found.engine
    lines = [
        f"engine    {engine.version}, {engine.replicas} replicas,"
        f" {engine.memory_bytes / 2**20:.1f} MiB, {engine.clients} clients",
        "",
        f"{'NODE':<24} {'STATE':<9} {'BEAT':>7} {'EXECUTORS':>10} {'HARNESSES':>10} {'STREAMS':>8}  URL",
    ]
    for node in found.nodes:
        age = f"{node.beat_age_s:.0f} s"
        counts = f"{node.executors:>10} {node.harnesses:>10} {node.streams:>8}"
        lines.append(f"{node.name:<24} {node.state:<9} {age:>7} {counts}  {node.url}".rstrip())
    if found.environment is not None:
        place = found.environment
        where = f"connected to node {place.node}" if place.node else "not connected"
        registered = place.registration_id or "not registered"
        lines += ["", f"environment {place.environment_id}: {registered}, {where}"]
    return "\n".join(lines) + "\n"
