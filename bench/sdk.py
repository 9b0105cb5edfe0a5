"""Measures the SDK beside the gevent client and SWE-ReX and prints a Markdown table.

    python3 build.py bench sdk [--quick] [--rounds N] [--only ROW,ROW] [--swerex PYTHON]

Each row of each way is a process of its own, the client.  Rounds are interleaved, medians are shown; "CPU" is
what the client used for its row.  What cannot be measured here says why below the table.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from bench.sdk_ends import (
    ASYNCIO,
    GEVENT,
    SWEREX,
    SYNC,
    WAYS,
    End,
    Missing,
    Worker,
    ours,
    peer_python,
    relayed,
    swerex,
)
from bench.sdk_fixture import set_ups

_FALLING = ("ms", "KiB", "s")  # units of which less is better
_OWN = WAYS[:3]


class Row(NamedTuple):
    """One measurement: its figures' names with their units, and by which ways."""

    name: str
    units: dict[str, str]
    ways: tuple[str, ...] = WAYS


ROWS = (
    Row("run_true", {"run true p50": "ms", "run true p99": "ms", "run_true, CPU": "s"}),
    Row("spawned", {"`true` spawned and reaped here": "ms"}, (SYNC,)),
    Row(
        "relay_true",
        {"run true p50, relay": "ms", "run true p99, relay": "ms", "run_true, CPU, relay": "s"},
        _OWN,
    ),
    Row("at_once", {"1,000 runs at once": "1/s", "at_once, CPU": "s"}),
    Row("memory", {"memory of an open process": "KiB"}, _OWN),
    Row("stream", {"output": "MB/s", "stream, CPU": "s"}),
    Row("large", {"upload, 64 MiB": "MB/s", "download, 64 MiB": "MB/s", "large, CPU": "s"}),
    Row("small", {"upload, 2,000 files": "1/s", "download, 2,000 files": "1/s", "small, CPU": "s"}),
    Row("imports", {"import": "ms"}),
    Row("execbox", {"execbox, set-up": "ms", "`python -c pass` beside it": "ms"}, (SYNC,)),
)

# Name of a figure -> way -> one value for each round.
Found = dict[str, dict[str, list[float]]]


class Bench:
    """The ends and the workers; they are started when they are first needed."""

    def __init__(self, options: argparse.Namespace, stack: ExitStack) -> None:
        self._options = options
        self._stack = stack
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-sdk-")))
        self._ends: dict[str, End] = {}
        self._peer = ""

    def measure(self, row: Row, way: str) -> dict[str, float]:
        """Return the figures of one row by one way.  Raises Missing."""
        quick = self._options.quick
        worker = Worker(way, self._python() if way == SWEREX else sys.executable)
        if row.name == "imports":
            return {"import": worker.import_ms(3 if quick else 9)}
        if row.name == "execbox":
            return set_ups(worker.python, self._options.ours, 3 if quick else 20)
        far = row.name.startswith("relay_")
        here = self._folder / "here"
        here.mkdir(exist_ok=True)
        end = self._end(SWEREX if way == SWEREX else "relay" if far else "ws")
        found = worker.measure("run_true" if far else row.name, end, here, quick)
        return {f"{name}, relay": value for name, value in found.items()} if far else found

    def _python(self) -> str:
        self._peer = self._peer or peer_python(self._options.swerex)
        return self._peer

    def _end(self, name: str) -> End:
        if name not in self._ends:
            folder = self._folder / name
            folder.mkdir()
            program = self._options.ours
            opened = {
                "ws": lambda: ours(program, folder),
                "relay": lambda: relayed(program, folder),
                SWEREX: lambda: swerex(self._python(), folder),
            }[name]()
            self._ends[name] = self._stack.enter_context(opened)
        return self._ends[name]


def main(argv: list[str]) -> int:
    """Measure and print; return the exit status."""
    options = _parser().parse_args(argv)
    wanted = options.only.split(",") if options.only else [row.name for row in ROWS]
    if unknown := set(wanted) - {row.name for row in ROWS}:
        print(f"bench: there is no row {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    rows = [row for row in ROWS if row.name in wanted]
    signal.signal(signal.SIGTERM, _leave)
    found: Found = {}
    notes: list[str] = []
    with ExitStack() as stack:
        bench = Bench(options, stack)
        rounds = options.rounds or (1 if options.quick else 5)
        for number in range(rounds):
            for row in rows:
                for way in row.ways if number % 2 == 0 else reversed(row.ways):
                    print(f"round {number + 1}/{rounds} {row.name} {way}", file=sys.stderr)
                    try:
                        figures = bench.measure(row, way)
                    except Missing as missing:
                        notes.append(f"{row.name} by {way}: {missing}")
                        continue
                    for name, value in figures.items():
                        found.setdefault(name, {}).setdefault(way, []).append(value)
    print(table(rows, found))
    for note in dict.fromkeys(notes):
        print(f"- {note}")
    return 0


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)  # by way of the context managers, which end what was started


def table(rows: list[Row], found: Found) -> str:
    """Return the medians, and how many times better asyncio is than the gevent client and than SWE-ReX."""
    lines = [
        "| | unit | gevent | asyncio | sync | SWE-ReX | asyncio to gevent | asyncio to SWE-ReX |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        for name, unit in row.units.items():
            values = {way: statistics.median(each) for way, each in found.get(name, {}).items()}
            cells = [f"{values[way]:.4g}" if way in values else "" for way in WAYS]
            against = [_better(values, unit, other) for other in (GEVENT, SWEREX)]
            lines.append(f"| {name} | {unit} | {' | '.join([*cells, *against])} |")
    return "\n".join(lines)


def _better(values: dict[str, float], unit: str, other: str) -> str:
    if ASYNCIO not in values or not values.get(other) or not values[ASYNCIO]:
        return ""
    ratio = values[other] / values[ASYNCIO]
    return f"{ratio if unit in _FALLING else 1 / ratio:.2f}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="build.py bench sdk", description="Measure the SDK.")
    parser.add_argument("--ours", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="small sizes: a first look, not to be quoted")
    parser.add_argument("--rounds", type=int, help="how often each figure is taken [default: 5]")
    parser.add_argument("--only", help="the rows to measure, with commas between")
    parser.add_argument(
        "--swerex", metavar="PYTHON", help="an interpreter that has SWE-ReX: bench/requirements-swerex.txt"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
