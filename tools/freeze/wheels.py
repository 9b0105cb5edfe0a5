"""The pinned wheels for every Python the zipapp serves, downloaded once."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.environment import fingerprint
from tools.problems import say

PYTHONS = ((3, 11), (3, 12), (3, 13), (3, 14))
_NEWEST_GLIBC = 28  # manylinux_2_28: Debian 10, RHEL 8 and newer
_OLDEST_GLIBC = 5


def wheels_for(version: tuple[int, int], machine: str, requirements: Path, work: Path) -> list[Path]:
    """Return the wheels of all pins for a Python version; none, said aloud, when they cannot be had.

    `machine` is what `uname -m` says where they run.
    """
    name = f"cp{version[0]}{version[1]}"
    folder = _folder(version, machine, requirements, work)
    if not folder.is_dir():
        fresh = folder.with_suffix(".new")
        shutil.rmtree(fresh, ignore_errors=True)
        command = [
            sys.executable,
            "-I",
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        ]
        command += [
            "--only-binary",
            ":all:",
            "--implementation",
            "cp",
            "--python-version",
            f"{version[0]}.{version[1]}",
        ]
        command += ["--abi", name, "--abi", "abi3", "--abi", "none"]
        command += [word for platform in _platforms(machine) for word in ("--platform", platform)]
        command += ["--dest", str(fresh), "-r", str(requirements)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            say(f"no wheels for Python {version[0]}.{version[1]} on {machine}: {reason}")
            return []
        fresh.replace(folder)
    return sorted(folder.glob("*.whl"))


def are_there(machines: Sequence[str], requirements: Path, work: Path) -> bool:
    """Return whether the wheels of every Python for these machines have been downloaded."""
    return all(
        _folder(version, machine, requirements, work).is_dir() for machine in machines for version in PYTHONS
    )


def _folder(version: tuple[int, int], machine: str, requirements: Path, work: Path) -> Path:
    name = f"cp{version[0]}{version[1]}-{machine}-{fingerprint([requirements])[:16]}"
    return work / "wheels" / name


def _platforms(machine: str) -> list[str]:
    numbered = [f"manylinux_2_{minor}_{machine}" for minor in range(_NEWEST_GLIBC, _OLDEST_GLIBC - 1, -1)]
    return [*numbered, *(f"manylinux{year}_{machine}" for year in ("2014", "2010", "1")), "any"]
