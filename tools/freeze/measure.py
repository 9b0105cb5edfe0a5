"""Size and start times of what `build` made, beside those of the last release.

    python -m tools.freeze.measure [--record]

Times are medians of a few runs on whatever else the machine does just now; `bench/release.json` says on which
machine the recorded ones were taken.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from execserver.dispatch import NAMES
from execserver.version import __version__
from tools.freeze.build import ONE_FILE, ROOT, ZIPAPP

RELEASE = ROOT / "bench" / "release.json"
HELPER = "codex-fs"
REQUEST = b'{"operation":"fs/getMetadata","params":{"path":"file:///","sandbox":null}}'

_ROUNDS = 11
_FIRST_STARTS = 3
_LIMIT_S = 60

# Row -> unit and the bar it has to stay below; that of the size is the one file's.
ROWS = {
    "size": ("MiB", 22.0),
    "first start": ("ms", 1500.0),
    "warm start": ("ms", 35.0),
    "helper": ("ms", 40.0),
    "server to URL": ("ms", 120.0),
}

Figures = dict[str, float | None]


def measure(program: Path) -> Figures:
    """Return row -> figure of one file; None where this build has nothing to measure."""
    with tempfile.TemporaryDirectory(prefix="execserver-measure-") as folder:
        variables = {**os.environ, "EXECSERVER_CACHE_DIR": f"{folder}/cache"}
        return {
            "size": round(program.stat().st_size / 2**20, 2),
            "first start": _median(_FIRST_STARTS, lambda: _first_start(program, variables)),
            "warm start": _median(_ROUNDS, lambda: _run([str(program), "--version"], variables)),
            "helper": _helper(program, Path(folder), variables),
            "server to URL": _median(_ROUNDS, lambda: _to_url(program, variables)),
        }


def table(current: dict[str, Figures], released: dict[str, Figures]) -> str:
    """Return the figures of all files, those of the last release in brackets behind them."""
    lines = [f"{'':<16}" + "".join(f"{name:>28}" for name in current)]
    for row, (unit, bar) in ROWS.items():
        cells = [
            f"{_shown(figures.get(row), unit)} ({_shown(released.get(name, {}).get(row), unit)})"
            for name, figures in current.items()
        ]
        lines.append(f"{row:<16}" + "".join(f"{cell:>28}" for cell in cells) + f"   bar {bar:g} {unit}")
    return "\n".join(lines)


def _shown(figure: float | None, unit: str) -> str:
    return "-" if figure is None else f"{figure:g} {unit}"


def _median(rounds: int, once: Callable[[], float]) -> float:
    return round(statistics.median(once() for _ in range(rounds)) * 1000, 1)


def _run(command: list[str], variables: dict[str, str], sent: bytes = b"") -> float:
    started = time.perf_counter()
    subprocess.run(command, input=sent, env=variables, capture_output=True, timeout=_LIMIT_S, check=True)
    return time.perf_counter() - started


def _first_start(program: Path, variables: dict[str, str]) -> float:
    shutil.rmtree(variables["EXECSERVER_CACHE_DIR"], ignore_errors=True)
    return _run([str(program), "--version"], variables)


def _helper(program: Path, folder: Path, variables: dict[str, str]) -> float | None:
    if NAMES.get(HELPER) is None:
        return None
    alias = folder / HELPER
    alias.symlink_to(program)
    return _median(_ROUNDS, lambda: _run([str(alias)], variables, REQUEST))


def _to_url(program: Path, variables: dict[str, str]) -> float:
    started = time.perf_counter()
    with subprocess.Popen(
        [str(program)], env=variables, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        took = time.perf_counter() - started
        server.send_signal(signal.SIGTERM)
        if not line.startswith(b"ws://"):
            raise RuntimeError(f"{program} printed no URL")
    return took


def main(argv: list[str]) -> int:
    """Measure both files, print the table, and record the figures when asked to."""
    current = {path.name: measure(path) for path in (ONE_FILE, ZIPAPP)}
    last = json.loads(RELEASE.read_text()) if RELEASE.exists() else {}
    sys.stdout.write(f"{table(current, last.get('figures', {}))}\n")
    if last:
        sys.stdout.write(f"In brackets: release {last['version']}, {last['machine']}\n")
    if "--record" in argv:
        machine = f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}"
        made = {"version": __version__, "machine": machine, "figures": current}
        RELEASE.write_text(json.dumps(made, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
