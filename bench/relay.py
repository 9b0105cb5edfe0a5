"""Measures remote mode: the relay alone, and executors behind it.

    python3 build.py bench relay [--quick] [--rounds N] [--only ROW,ROW] [--reference PROGRAM] [--json FILE]

The relay is the built file, on a core of its own.  Executors, the reference's and ours, are measured through
one and the same relay with one and the same client, in turn, so that what differs is the executor.  Rows of
the cluster and of the crowd need Debian's redis-server and haproxy, and stand beside the same with one node.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from bench.cluster_rows import CLUSTER_ROWS
from bench.compare import find_reference
from bench.crowd_rows import CROWD_ROWS
from bench.relay_ends import Executor, RelayUnderTest
from bench.relay_rows import EXECUTOR_ROWS, RELAY_ROWS
from tools.problems import Problem

SHARED_ROWS = {**CLUSTER_ROWS, **CROWD_ROWS}  # with columns of their own


class Row(NamedTuple):
    """One line of the table."""

    name: str
    title: str
    unit: str
    higher_is_better: bool


Figures = dict[str, dict[str, list[float]]]


def main(argv: list[str]) -> int:
    """Measure and print; return the exit status."""
    options = _parser().parse_args(argv)
    wanted = options.only.split(",") if options.only else usual_rows(quick=options.quick)
    unknown = set(wanted) - {*RELAY_ROWS, *SHARED_ROWS, *EXECUTOR_ROWS}
    if unknown:
        print(f"bench: there is no row {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    rounds = options.rounds or (1 if options.quick else 5)
    cpus = sorted(os.sched_getaffinity(0))
    relay_cpus = {cpus[0]} if len(cpus) > 1 else None
    figures: Figures = {}
    for name in [name for name in RELAY_ROWS if name in wanted]:
        measure = RELAY_ROWS[name].measure
        for _ in range(rounds):
            with RelayUnderTest([options.ours], relay_cpus) as relay:
                figures.setdefault(name, {}).setdefault("relay", []).append(measure(relay, options.quick))
    for name in [name for name in SHARED_ROWS if name in wanted]:
        _measure_cluster(options, name, rounds, figures)
    rows = [name for name in EXECUTOR_ROWS if name in wanted]
    if rows:
        _measure_executors(options, rows, rounds, figures)
    print(table(figures))
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=1) + "\n")
    return 0


def usual_rows(*, quick: bool) -> list[str]:
    """Return the rows of a run that names none; a quick one leaves out those that take minutes."""
    shared = CLUSTER_ROWS if quick else SHARED_ROWS
    return [*RELAY_ROWS, *shared, *EXECUTOR_ROWS]


def _measure_cluster(options: argparse.Namespace, name: str, rounds: int, figures: Figures) -> None:
    for _ in range(rounds):
        try:
            measured = SHARED_ROWS[name].measure([options.ours], options.quick)
        except Problem as missing:
            print(f"bench: {name} is left out: {missing}; {missing.cure}", file=sys.stderr)
            return
        for column, value in measured.items():
            figures.setdefault(name, {}).setdefault(column, []).append(value)


def _measure_executors(options: argparse.Namespace, rows: list[str], rounds: int, figures: Figures) -> None:
    reference = options.reference or find_reference()
    programs = {"ours": [options.ours]}
    if reference:
        programs = {"ref": [reference, "exec-server"], **programs}
    else:
        print("bench: no reference program (codex) found, measuring ours alone", file=sys.stderr)
    with RelayUnderTest([options.ours], None, shares_pages=False) as relay:
        for number in range(rounds):
            order = list(programs) if number % 2 == 0 else list(reversed(programs))
            for row in rows:
                for name in order:
                    print(f"round {number + 1}/{rounds} {row} {name}", file=sys.stderr)
                    with (
                        tempfile.TemporaryDirectory() as home,
                        Executor(relay, programs[name], home) as executor,
                    ):
                        value = EXECUTOR_ROWS[row].measure(relay, executor, options.quick)
                    figures.setdefault(row, {}).setdefault(name, []).append(value)


def table(figures: Figures) -> str:
    """Return medians, and how many times better ours is."""
    lines = []
    for name, servers in figures.items():
        row = (RELAY_ROWS.get(name) or SHARED_ROWS.get(name) or EXECUTOR_ROWS[name]).row
        medians = {server: statistics.median(values) for server, values in servers.items()}
        cells = "".join(f"  {server} {_shown(value):>8}" for server, value in medians.items())
        if {"ours", "ref"} <= set(medians):
            better = medians["ours"] / medians["ref"]
            cells += f"  {better if row.higher_is_better else 1 / better:>6.2f}x"
        lines.append(f"{name:<12} {row.title:<52} {row.unit:<9}{cells}")
    return "\n".join(lines)


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="build.py bench relay", allow_abbrev=False, description=__doc__)
    parser.add_argument("--ours", required=True, help="the program; build.py gives it")
    parser.add_argument("--reference", help="the reference's program (default: one that is installed)")
    parser.add_argument(
        "--quick", action="store_true", help="one round of small sizes, without the rows `crowd_...`"
    )
    parser.add_argument("--rounds", type=int, help="default 5")
    parser.add_argument("--only", help="rows, with commas between them")
    parser.add_argument("--json", help="write all figures into a file")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
