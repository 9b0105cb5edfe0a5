"""Counts what an operation costs our server: instructions, system calls, greenlet switches.

    python3 build.py bench cost [--only ROW,ROW] [--check] [--write]

Unlike times, instructions hardly depend on the machine and on what else it does: two runs differ by some 2 %.
Those of `start` differ by up to 8 %, with the same number of calls of functions: look at several runs there.
They are of one process alone, in user mode; what the zygote and the kernel do for it is not in them.  That is
the server, of the rows through a relay the executor or the relay, and of some the client.  Starts are counted
whole.
Calls and switches depend a little on what arrives together.  Instructions are counted by callgrind, system
calls by strace; a column whose tool is missing stays empty.  Each figure is the difference between N and 2N
operations, so that whatever happens once cancels out, and the median of three such differences.

`--check` compares the instructions with bench/budgets.toml and exits with 1 where they are 5 % above their
budget; `--write` writes this run's figures there.
"""

from __future__ import annotations

import argparse
import glob
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from bench.cost_client import CLIENT, ClientEnds, serving_client
from bench.cost_doors import DOORS, lay_files
from bench.cost_egress import EGRESS
from bench.cost_remote import PROGRAM, RemoteEnds, serving_remote
from bench.cost_rows import ROWS, SERVER, CostRow
from bench.cost_starts import STARTS, StartRow
from bench.cost_starts import measure as start_cost
from bench.counted_server import COUNT
from bench.server import Server
from bench.trapped_calls import TRAPPED, TrappedRow
from bench.trapped_calls import calls as trapped_calls

BUDGETS = Path(__file__).with_name("budgets.toml")
MARGIN = 0.05
CALLS_MARGIN = 0.15  # of an exec supervisor; how often it waits depends on the others
_LISTEN = ["--listen", "ws://127.0.0.1:0"]
_ATTACH_S = 60.0
_KILO = 1000
_REPEATS = 3
_SETTLED_S = (
    5.0  # two seconds after its start, and under valgrind later, the server looks what sandboxes work
)

# What one row costs: the name of a column and its figure.  Instructions are in thousands.
Cost = dict[str, float]
AnyRow = CostRow | StartRow | TrappedRow
Measure = Callable[[CostRow], float]
Ends = Server | RemoteEnds | ClientEnds


def main(argv: list[str]) -> int:
    """Count and print; return the exit status."""
    options = _parser().parse_args(argv)
    every: list[AnyRow] = [*ROWS, *EGRESS, *DOORS, *STARTS, *TRAPPED]
    wanted = options.only.split(",") if options.only else [row.name for row in every]
    unknown = set(wanted) - {row.name for row in every}
    if unknown:
        print(f"bench: there is no row {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    rows = [row for row in every if row.name in wanted]
    figures: dict[str, Cost] = {row.name: {} for row in rows}
    with tempfile.TemporaryDirectory(prefix="bench-cost-") as place:
        lay_files(Path(place))
        _count_operations([row for row in rows if isinstance(row, CostRow)], Path(place), figures)
        for row in rows:
            if isinstance(row, StartRow) and (found := start_cost(row, Path(place))) is not None:
                figures[row.name][INSTRUCTIONS] = found
            if isinstance(row, TrappedRow) and (number := trapped_calls(row)) is not None:
                figures[row.name][CALLS] = number
    print(table(rows, figures))
    if options.write:
        BUDGETS.write_text(budgets_text({**budgets(), **figures}))
    excesses = over_budget(figures, budgets()) if options.check else []
    for excess in excesses:
        print(excess)
    return 1 if excesses else 0


def _count_operations(rows: Sequence[CostRow], place: Path, figures: dict[str, Cost]) -> None:
    for column, counting in COLUMNS.items():
        for subject, options in dict.fromkeys((row.subject, row.options) for row in rows):
            with counting(place, subject, [word.format(place=place) for word in options]) as measure:
                for row in rows if measure else ():
                    if measure is not None and (row.subject, row.options) == (subject, options):
                        figures[row.name][column] = measure(row)


def table(rows: Sequence[AnyRow], figures: dict[str, Cost]) -> str:
    """Return the figures as a Markdown table."""
    lines = ["| row | | instructions, thousands | system calls | switches |", "|---|---|---|---|---|"]
    for row in rows:
        cells = [_shown(figures[row.name].get(column)) for column in COLUMNS]
        lines.append(f"| {row.name} | {row.title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def over_budget(figures: dict[str, Cost], budgets: dict[str, Cost]) -> list[str]:
    """Return a line for each figure that is above its budget; one without a budget is above none."""
    found = []
    for name, cost in figures.items():
        figure, budget = cost.get(INSTRUCTIONS), budgets.get(name, {}).get(INSTRUCTIONS)
        if figure is not None and budget is not None and figure > budget * (1 + MARGIN):
            found.append(f"{name}: {_shown(figure)} thousand instructions, budget {_shown(budget)}")
    for row in TRAPPED:
        figure, budget = figures.get(row.name, {}).get(CALLS), budgets.get(row.name, {}).get(CALLS)
        if figure is not None and budget is not None and figure > budget * (1 + CALLS_MARGIN):
            found.append(f"{row.name}: {_shown(figure)} system calls, budget {_shown(budget)}")
    return found


def budgets() -> dict[str, Cost]:
    """Return the budgets, none where the file is missing."""
    try:
        return tomllib.loads(BUDGETS.read_text())
    except FileNotFoundError:
        return {}


def budgets_text(figures: dict[str, Cost]) -> str:
    """Return the text of the file with budgets."""
    lines = ["# What each operation may cost; `python3 build.py bench cost --write` writes it."]
    for name, cost in sorted(figures.items()):
        lines += ["", f"[{name}]", *(f"{column} = {figure:.1f}" for column, figure in cost.items())]
    return "\n".join(lines) + "\n"


@contextmanager
def counting_instructions(place: Path, subject: str, options: Sequence[str] = ()) -> Iterator[Measure | None]:
    """Run what is counted under callgrind."""
    if not shutil.which("valgrind"):
        print("bench: there is no valgrind, so no instructions are counted", file=sys.stderr)
        yield None
        return
    # It changes the hash seed of nothing, but ours must be the same in each run.
    prefix = ["valgrind", "--tool=callgrind", "-q", f"--callgrind-out-file={place}/callgrind", "--"]
    with _serving(subject, [*prefix, *PROGRAM], options) as server:

        def count(row: CostRow, times: int) -> float:
            _control(server.pid, "-z")
            row.act(server.url, place, times)
            _control(server.pid, "-d")
            newest = max(glob.glob(f"{place}/callgrind*"), key=os.path.getmtime)
            found = re.search(r"^(?:totals|summary): (\d+)", Path(newest).read_text(), re.MULTILINE)
            return float(found[1]) if found else 0.0

        yield lambda row: _difference(row, count) / _KILO


@contextmanager
def counting_calls(place: Path, subject: str, options: Sequence[str] = ()) -> Iterator[Measure | None]:
    """Trace the system calls of a running process."""
    if not shutil.which("strace"):
        print("bench: there is no strace, so no system calls are counted", file=sys.stderr)
        yield None
        return
    with _serving(subject, PROGRAM, options) as server:

        def count(row: CostRow, times: int) -> float:
            report = place / "strace"
            report.unlink(missing_ok=True)
            command = ["strace", "-f", "-c", "-o", str(report), "-p", str(server.pid)]
            with subprocess.Popen(command, stderr=subprocess.DEVNULL) as tracer:
                _until(lambda: _is_traced(server.pid))
                row.act(server.url, place, times)
                tracer.send_signal(signal.SIGINT)
            total = re.search(r"^100\.00 +\S+ +\S* *(\d+)", report.read_text(), re.MULTILINE)
            return float(total[1]) if total else 0.0

        yield lambda row: _difference(row, count)


@contextmanager
def counting_switches(place: Path, subject: str, options: Sequence[str] = ()) -> Iterator[Measure | None]:
    """Count the greenlet switches of a program that notes them."""
    shown = place / "switches"
    shown.write_bytes(COUNT.pack(0))
    with _serving(subject, [sys.executable, "-m", "bench.counted_server", str(shown)], options) as server:

        def count(row: CostRow, times: int) -> float:
            (before,) = COUNT.unpack(shown.read_bytes())
            row.act(server.url, place, times)
            (after,) = COUNT.unpack(shown.read_bytes())
            return float(after - before)

        yield lambda row: _difference(row, count)


INSTRUCTIONS = "instructions"
CALLS = "calls"
COLUMNS = {
    INSTRUCTIONS: counting_instructions,
    CALLS: counting_calls,
    "switches": counting_switches,
}


def _difference(row: CostRow, count: Callable[[CostRow, int], float]) -> float:
    """Return the cost of one operation."""
    count(row, row.times)  # whatever is made lazily
    return statistics.median(
        (count(row, 2 * row.times) - count(row, row.times)) / row.times for _ in range(_REPEATS)
    )


@contextmanager
def _serving(subject: str, program: Sequence[str], options: Sequence[str]) -> Iterator[Ends]:
    # Without a fixed seed the order of sets, and so the work, would differ from run to run.
    before = os.environ.get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = "0"
    try:
        starting: AbstractContextManager[Ends]
        if subject == SERVER:
            starting = Server("ours", shlex.join([*program, *_LISTEN, *options]), None)
        elif subject == CLIENT:
            starting = serving_client(program)
        else:
            starting = serving_remote(subject, program)
        with starting as server:
            time.sleep(_SETTLED_S)
            yield server
    finally:
        if before is None:
            del os.environ["PYTHONHASHSEED"]
        else:
            os.environ["PYTHONHASHSEED"] = before


def _control(pid: int, option: str) -> None:
    done = subprocess.run(
        ["callgrind_control", option, str(pid)], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode or "OK" not in done.stdout:
        raise SystemExit(f"bench: callgrind does not answer: {done.stdout}{done.stderr}")


def _is_traced(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    return "TracerPid:\t0" not in status


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _ATTACH_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("bench: strace could not attach to the server")
        time.sleep(0.01)


def _shown(figure: float | None) -> str:
    return "" if figure is None else f"{figure:.1f}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="build.py bench cost", description="Count what operations cost.")
    parser.add_argument("--ours", help=argparse.SUPPRESS)  # the source is counted
    parser.add_argument("--only", help="the rows to count, with commas between")
    parser.add_argument("--check", action="store_true", help="fail where a budget is exceeded")
    parser.add_argument("--write", action="store_true", help="write the figures as budgets")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
