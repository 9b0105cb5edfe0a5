"""The pins of Debian's packages that a file for another machine is made of.

python -m tools.freeze.packages     write packages.txt anew, with what apt has just now
"""

from __future__ import annotations

import sys
from pathlib import Path

from tools.debian import DEBIAN, Pin, Suite
from tools.problems import Problem, tell

PINS = Path(__file__).with_name("packages.txt")
RELEASE = "bookworm"  # the oldest one that has the Python of wheels and file: its C library is carried along
PYTHON = (3, 11)
MACHINES = ("aarch64", "x86_64")
# The compiled sandbox init compiles for aarch64, too, but was not played there.
INIT_MACHINES = ("x86_64",)
NAMES = (
    "python3.11-minimal",
    "libpython3.11-minimal",
    "libpython3.11-stdlib",
    "libc6",
    "libexpat1",
    "libffi8",
    "libgcc-s1",
    "libsqlite3-0",
    "libssl3",
    "libstdc++6",
    "zlib1g",
)


def pinned(machine: str) -> list[Pin]:
    """Return the pins for a kind of processor."""
    lines = [line.split() for line in PINS.read_text().splitlines() if line and not line.startswith("#")]
    return [Pin(*rest) for name, *rest in lines if name == machine]


def suite(machine: str, work: Path) -> Suite:
    """Return where the packages come from; what is downloaded is kept below `work`."""
    return Suite(work / "debian", DEBIAN, RELEASE, machine)


def main() -> int:
    """Write the pins; a Problem is told in plain words with its cure."""
    head = [line for line in PINS.read_text().splitlines() if line.startswith("#")]
    work = Path(__file__).parents[2] / "build"
    try:
        fresh = [
            f"{machine} {' '.join(suite(machine, work).pin(name))}" for machine in MACHINES for name in NAMES
        ]
    except Problem as problem:
        return tell(problem)
    PINS.write_text("\n".join([*head, *fresh]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
