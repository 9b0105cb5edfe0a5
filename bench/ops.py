"""Measures what running many servers costs, beside the targets, and prints a Markdown table.

    python3 build.py bench ops [--quick] [--rounds N] [--only ROW,ROW]

Limits, audit log, recorder, upgrade, metrics (`ops_rows.py`).  Rounds are interleaved, medians are shown with
the least and the most.  The targets are those of a machine that has nothing else to do.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys

from bench.client import Gone, Refused
from bench.ops_rows import ROWS, Row
from bench.server import StartFailed

Found = dict[str, list[float]]


def main(argv: list[str]) -> int:
    """Measure and print; return the exit status."""
    options = _parser().parse_args(argv)
    wanted = options.only.split(",") if options.only else [row.name for row in ROWS]
    if unknown := set(wanted) - {row.name for row in ROWS}:
        print(f"bench: there is no row {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    rows = [row for row in ROWS if row.name in wanted]
    rounds = options.rounds or (1 if options.quick else 5)
    found: Found = {}
    notes: dict[str, None] = {}
    for number in range(rounds):
        for row in rows:
            print(f"round {number + 1}/{rounds} {row.name}", file=sys.stderr)
            try:
                figures = row.measure(shlex.quote(options.ours), row.quick if options.quick else row.size)
            except (Gone, Refused, StartFailed) as error:
                notes[f"{row.name}: {error}"] = None
                continue
            for title, value in figures.items():
                found.setdefault(title, []).append(value)
    print(table(rows, found))
    for note in notes:
        print(f"- {note}")
    return 0


def table(rows: list[Row], found: Found) -> str:
    """Return the medians beside the targets."""
    lines = ["| what | unit | median | least | most | target | |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        for title, (unit, target) in row.figures.items():
            values = found.get(title, [])
            shown = [statistics.median(values), min(values), max(values)] if values else []
            cells = [f"{value:.3g}" for value in shown] or ["-", "-", "-"]
            verdict = "" if not shown else "met" if shown[0] <= target else "missed"
            lines.append(f"| {title} | {unit} | {' | '.join(cells)} | {target:g} | {verdict} |")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="build.py bench ops", description="Measure what operating costs.")
    parser.add_argument("--ours", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="small sizes: a first look, not to be quoted")
    parser.add_argument("--rounds", type=int, help="how often each figure is taken [default: 5]")
    parser.add_argument("--only", help="the rows to measure, with commas between")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
