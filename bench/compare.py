"""Measures our server beside the reference and prints a table.

    python3 build.py bench [--quick] [--rounds N] [--only ROW,ROW] [--reference PROGRAM] [--json FILE]

Rounds are interleaved and change their order, so that the machine's moods hit both.  Where the larger load
generator `execbench` is at hand, it is used instead and gets the arguments; `--own-rows` prevents that.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.client import Client, Gone, Refused
from bench.helper_rows import HELPER_ROWS
from bench.rows import ROWS as PLAIN_ROWS
from bench.rows import Row, Setting
from bench.sandbox_rows import SANDBOX_ROWS
from bench.server import Server, StartFailed

ROOT = Path(__file__).resolve().parents[1]
GENERATOR_VARIABLE = "EXECBENCH"
REFERENCE_VERSION = "0.142.0"
LISTEN = "--listen ws://127.0.0.1:0"

ROWS = [*PLAIN_ROWS, *SANDBOX_ROWS, *HELPER_ROWS]

Figures = dict[str, dict[str, list[float]]]


def main(argv: list[str]) -> int:
    """Measure and print; return the exit status."""
    options, rest = _parser().parse_known_args(argv)
    reference = options.reference or find_reference()
    servers = {"ours": f"{shlex.quote(options.ours)} {LISTEN}"}
    if reference:
        servers = {"ref": f"{shlex.quote(reference)} exec-server {LISTEN}", **servers}
    else:
        print("bench: no reference program (codex) found, measuring ours alone", file=sys.stderr)
    generator = None if options.own_rows else find_generator()
    if generator:
        return run_generator(generator, servers, argv)
    if rest:
        print(f"bench: unknown arguments: {' '.join(rest)}", file=sys.stderr)
        return 2
    wanted = options.only.split(",") if options.only else [one.name for one in ROWS if not one.takes_minutes]
    unknown = set(wanted) - {row.name for row in ROWS}
    if unknown:
        print(f"bench: there is no row {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    rounds = options.rounds or (1 if options.quick else 5)
    rows = [row for row in ROWS if row.name in wanted]
    figures, notes = measure(servers, rows, rounds, options.quick)
    print(table(figures, rows, list(servers)))
    for note in notes:
        print(f"- {note}")
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=1) + "\n")
    return 0


def find_generator() -> Path | None:
    """Return the folder that holds the package `execbench`, if there is one."""
    for candidate in (os.environ.get(GENERATOR_VARIABLE), ROOT.parent / "shared" / "bench"):
        if candidate and Path(candidate, "execbench").is_dir():
            return Path(candidate)
    return None


def run_generator(folder: Path, servers: dict[str, str], argv: list[str]) -> int:
    """Hand the measuring over to `execbench`."""
    passed = list(argv)
    for own in ("--ours", "--reference"):
        if own in passed:
            at = passed.index(own)
            del passed[at : at + 2]
    chosen = [word for name, command in servers.items() for word in ("--server", f"{name}={command}")]
    return subprocess.run(
        [sys.executable, "-m", "execbench", *chosen, *passed],
        env={**os.environ, "PYTHONPATH": str(folder)},
        check=False,
    ).returncode


def find_reference() -> str | None:
    """Return the reference program: what the reference tests have installed, else the `codex` in PATH."""
    from tests.reference.install import ReferenceMissing, binary_path

    try:
        installed = binary_path(REFERENCE_VERSION)
    except ReferenceMissing:
        installed = None
    if installed and installed.exists():
        return str(installed)
    return shutil.which("codex")


def measure(servers: dict[str, str], rows: list[Row], rounds: int, quick: bool) -> tuple[Figures, list[str]]:
    """Return every figure as row -> server -> one value a round, and what went wrong."""
    figures: Figures = {row.name: {name: [] for name in servers} for row in rows}
    notes: list[str] = []
    cpus = sorted(os.sched_getaffinity(0))
    server_cpus = {cpus[0]} if len(cpus) > 1 else None
    if server_cpus:
        os.sched_setaffinity(0, {cpus[1]})
    for number in range(rounds):
        names = list(servers) if number % 2 == 0 else list(reversed(servers))
        for row in rows:
            for name in names:
                print(f"round {number + 1}/{rounds} {row.name} {name}", file=sys.stderr)
                try:
                    figures[row.name][name].append(_once(name, servers[name], server_cpus, row, quick))
                except (Gone, Refused, StartFailed, OSError) as error:
                    notes.append(f"{row.name} on {name}: {type(error).__name__}: {error}")
    return figures, list(dict.fromkeys(notes))


def _once(name: str, command: str, cpus: set[int] | None, row: Row, quick: bool) -> float:
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        Server(name, command, cpus) as server,
        Client(server.url) as client,
    ):
        return row.measure(Setting(client, server.pid, Path(folder), quick, shlex.split(command)[0]))


def table(figures: Figures, rows: list[Row], names: list[str]) -> str:
    """Return the medians side by side, and how many times better ours is than the first server."""
    head = ["row", "what", "unit", *names, *(["better"] if len(names) > 1 else [])]
    lines = [head]
    for row in rows:
        medians = [statistics.median(values) if values else None for values in figures[row.name].values()]
        cells = [row.name, row.title, row.unit, *(_figure(value) for value in medians)]
        if len(names) > 1:
            cells.append(_ratio(row, medians[0], medians[-1]))
        lines.append(cells)
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < 3 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _ratio(row: Row, reference: float | None, ours: float | None) -> str:
    if not reference or not ours:
        return "-"
    return f"{ours / reference if row.higher_is_better else reference / ours:.2f}x"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="build.py bench", allow_abbrev=False, description=__doc__)
    parser.add_argument("--ours", required=True, help="the server's program; build.py gives it")
    parser.add_argument("--reference", help="the reference's program (default: one that is installed)")
    parser.add_argument("--own-rows", action="store_true", help="do not use execbench")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: for a first look only")
    parser.add_argument("--rounds", type=int, help="interleaved rounds (default 5)")
    parser.add_argument("--only", help="rows, separated by commas")
    parser.add_argument("--json", help="write every value here")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
