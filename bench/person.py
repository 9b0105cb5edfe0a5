"""Measures execserver's client beside OpenSSH's and prints a Markdown table.

    python3 build.py bench client [--quick] [--rounds N] [--only ROW,ROW] [--network loopback|far]

Rounds are interleaved, medians are shown.  What cannot be measured here says why below the table.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from bench.person_ends import Missing, far_away, loopback, serving
from bench.person_rows import OURS, ROWS, RSYNC, SSH, Row

NETWORKS = {"loopback": loopback, "far": far_away}
_WAYS = (OURS, SSH, RSYNC)
_FALLING = ("ms", "s")  # units of which less is better

# Name of a figure -> way -> one value for each round.
Found = dict[str, dict[str, list[float]]]


def main(argv: list[str]) -> int:
    """Measure and print; return the exit status."""
    options = _parser().parse_args(argv)
    wanted = options.only.split(",") if options.only else [row.name for row in ROWS]
    if unknown := set(wanted) - {row.name for row in ROWS}:
        print(f"bench: there is no row {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    rows = [row for row in ROWS if row.name in wanted]
    rounds = options.rounds or (1 if options.quick else 5)
    notes: list[str] = []
    for name in [options.network] if options.network else list(NETWORKS):
        found: Found = {}
        try:
            with (
                NETWORKS[name]() as network,
                tempfile.TemporaryDirectory(prefix="bench-client-") as folder,
                serving(options.ours, network, Path(folder)) as ends,
            ):
                chosen = [row for row in rows if network.is_far or not row.only_far]
                for number in range(rounds):
                    for row in chosen:
                        for way in row.ways if number % 2 == 0 else reversed(row.ways):
                            print(f"{name} round {number + 1}/{rounds} {row.name} {way}", file=sys.stderr)
                            try:
                                figures = row.measure(ends, way, options.quick)
                            except (Missing, OSError, EOFError) as error:
                                notes.append(f"{name}, {row.name} by {way}: {error}")
                                continue
                            for figure, value in figures.items():
                                found.setdefault(figure, {}).setdefault(way, []).append(value)
                print(f"\n{table(network.name, chosen, found)}")
        except Missing as missing:
            notes.append(f"{name}: not measured, {missing}")
    for note in dict.fromkeys(notes):
        print(f"- {note}")
    return 0


def table(network: str, rows: list[Row], found: Found) -> str:
    """Return the medians, and how many times better ours is than the better one of the others."""
    lines = [f"| {network} | unit | ours | ssh, scp | rsync | better |", "|---|---|---|---|---|---|"]
    for row in rows:
        for name, unit in row.units.items():
            values = {way: statistics.median(each) for way, each in found.get(name, {}).items()}
            cells = [f"{values[way]:.4g}" if way in values else "" for way in _WAYS]
            lines.append(f"| {name} | {unit} | {' | '.join(cells)} | {_better(values, unit)} |")
    return "\n".join(lines)


def _better(values: dict[str, float], unit: str) -> str:
    others = [value for way, value in values.items() if way != OURS]
    if OURS not in values or not others:
        return ""
    ours = values[OURS]
    return f"{min(others) / ours:.2f}" if unit in _FALLING else f"{ours / max(others):.2f}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="build.py bench client", description="Measure beside OpenSSH.")
    parser.add_argument("--ours", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="small sizes: a first look, not to be quoted")
    parser.add_argument("--rounds", type=int, help="how often each figure is taken [default: 5]")
    parser.add_argument("--only", help="the rows to measure, with commas between")
    parser.add_argument("--network", choices=list(NETWORKS), help="only this one")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
