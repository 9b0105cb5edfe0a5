"""The frame of a worker of `bench sdk`: one row in a process of its own, its figures as JSON on stdout.

Standard library only: a worker of the peer runs in the peer's environment.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

MIB = 1 << 20
CPU = "CPU"
Figures = dict[str, float]


class Task(NamedTuple):
    """What a worker gets: where the server is, a folder here and one there, and how much to do."""

    address: str
    token: str
    here: Path
    there: Path
    quick: bool

    def scaled(self, full: int, quick: int) -> int:
        """Return the size for this run."""
        return quick if self.quick else full


def main(rows: Mapping[str, Callable[[Task], Figures]]) -> None:
    """Measure the row that the command line names and print its figures."""
    row, address, token, here, there, quick = sys.argv[1:]
    begun = time.process_time()
    figures = rows[row](Task(address, token, Path(here), Path(there), quick == "quick"))
    sys.stdout.write(json.dumps({**figures, CPU: time.process_time() - begun}) + "\n")


def percentiles(name: str, seconds: list[float]) -> Figures:
    """Return the median and the 99th percentile in milliseconds."""
    ordered = sorted(seconds)
    return {
        f"{name} p50": ordered[len(ordered) // 2] * 1000,
        f"{name} p99": ordered[int(len(ordered) * 0.99)] * 1000,
    }


def megabytes_per_s(size: int, begun: float) -> float:
    """Return the rate since a time of `time.perf_counter`."""
    return size / 1e6 / (time.perf_counter() - begun)


def resident_bytes() -> int:
    """Return the memory of this process."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def large_file(task: Task) -> Path:
    """Return a local file of 64 MiB (of a quick round 4) that can be read as text, too."""
    size = task.scaled(64, 4) * MIB
    path = task.here / f"large-{size}"
    if not path.exists():
        path.write_bytes((os.urandom(32).hex() * (size // 64)).encode())
    return path


def small_files(task: Task) -> Path:
    """Return a local folder with 2,000 (of a quick round 100) files of up to 4 KB."""
    count = task.scaled(2000, 100)
    folder = task.here / f"small-{count}"
    if not folder.exists():
        for number in range(count):
            place = folder / str(number // 100)
            place.mkdir(parents=True, exist_ok=True)
            (place / str(number)).write_bytes(os.urandom(number % 4000))
    return folder


def count_files(folder: Path) -> int:
    """Return how many files there are below a folder."""
    return sum(1 for each in folder.rglob("*") if each.is_file())


def expect(found: object, wanted: object, what: str) -> None:
    """Raise RuntimeError unless a measurement did what it is about."""
    if found != wanted:
        raise RuntimeError(f"{what}: {found!r} in place of {wanted!r}")
