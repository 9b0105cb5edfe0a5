"""Gets the reference programs: the released command line client, which holds the reference server too.

`reference_binary("0.142.0")` returns the program's path. It is looked for in the cache folder and installed
there with `npm` when it is missing; `ReferenceMissing` says what was tried and what to do. The folder is
`$EXECSERVER_REFERENCE_DIR`, by default `~/.cache/execserver-reference`.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

PACKAGE = "@openai/codex"
VERSIONS = ("0.142.0", "0.169.0")
FOLDER_VARIABLE = "EXECSERVER_REFERENCE_DIR"
INSTALL_WAIT = 600.0
TARGETS = {"x86_64": ("linux-x64", "x86_64"), "aarch64": ("linux-arm64", "aarch64")}


class ReferenceMissing(Exception):
    """The reference program is not here and could not be installed; the text says why."""


def folder() -> Path:
    """Return the cache folder; it need not exist."""
    return Path(os.environ.get(FOLDER_VARIABLE) or Path.home() / ".cache" / "execserver-reference")


def binary_path(version: str) -> Path:
    """Return where the program of this version lies once it is installed."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in TARGETS:
        raise ReferenceMissing(
            f"the reference programs exist for Linux on {', '.join(TARGETS)}, not for {machine}"
        )
    package, triple = TARGETS[machine]
    inner = (
        Path("node_modules")
        / f"{PACKAGE}-{package}"
        / "vendor"
        / f"{triple}-unknown-linux-musl"
        / "bin"
        / "codex"
    )
    return folder() / version.replace(".", "")[:4] / inner


@cache
def reference_binary(version: str) -> Path:
    """Return the program of this version, installed if need be. Raises `ReferenceMissing`."""
    path = binary_path(version)
    if not path.exists():
        _install(version, path.parents[6])
    if not path.exists():
        raise ReferenceMissing(f"{PACKAGE}@{version} is installed but holds no {path}")
    return path


def _install(version: str, target: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise ReferenceMissing(
            f"{PACKAGE}@{version} is not in {target} and there is no npm to install it with"
        )
    target.mkdir(parents=True, exist_ok=True)
    command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(target), f"{PACKAGE}@{version}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_WAIT, check=False)
    except subprocess.TimeoutExpired:
        raise ReferenceMissing(f"installing {PACKAGE}@{version} took more than {INSTALL_WAIT} s") from None
    if done.returncode:
        raise ReferenceMissing(f"`{' '.join(command)}` failed:\n{done.stderr.strip()}")


def new_home() -> Path:
    """Make a home folder for a reference program, not in the temporary folder (it refuses that)."""
    homes = folder() / "homes"
    homes.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="home-", dir=homes))


def main() -> int:
    """Install every version; print where they are, or what is missing."""
    code = 0
    for version in VERSIONS:
        try:
            sys.stdout.write(f"{version}: {reference_binary(version)}\n")
        except ReferenceMissing as missing:
            sys.stderr.write(f"{version}: {missing}\n")
            code = 1
    return code


if __name__ == "__main__":
    raise SystemExit(main())
