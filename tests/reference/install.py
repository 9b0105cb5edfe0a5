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
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

PACKAGE = "@openai/codex"
VERSIONS = ("0.142.0", "0.169.0")
SHELL_TOOL = "@openai/codex-shell-tool-mcp"
SHELL_TOOL_VERSION = "0.97.0"  # the last of it; the client of the same version is its sandbox helper
FOLDER_VARIABLE = "EXECSERVER_REFERENCE_DIR"
INSTALL_WAIT = 600.0
TARGETS = {"x86_64": ("linux-x64", "x86_64"), "aarch64": ("linux-arm64", "aarch64")}


class ReferenceMissing(Exception):
    """The reference program is not here and could not be installed; the text says why."""


class ShellTool(NamedTuple):
    """The programs of the reference's shell tool: server, wrapper, patched Bash and sandbox helper."""

    server: Path
    wrapper: Path
    bash: Path
    helper: Path


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
        _install([f"{PACKAGE}@{version}"], path.parents[6])
    if not path.exists():
        raise ReferenceMissing(f"{PACKAGE}@{version} is installed but holds no {path}")
    return path


@cache
def shell_tool() -> ShellTool:
    """Return the programs of the shell tool, installed if need be. Raises `ReferenceMissing`."""
    if platform.machine() != "x86_64":
        raise ReferenceMissing(f"the shell tool is driven on x86_64, not on {platform.machine()}")
    target = folder() / "097"
    packages = target / "node_modules" / "@openai"
    inner = Path("vendor") / "x86_64-unknown-linux-musl"
    tool = packages / "codex-shell-tool-mcp" / inner
    helper = packages / "codex" / inner / "codex" / "codex"
    if not (tool / "codex-exec-mcp-server").exists() or not helper.exists():
        _install([f"{name}@{SHELL_TOOL_VERSION}" for name in (SHELL_TOOL, PACKAGE)], target)
    bash = next((path for path in sorted(tool.glob("bash/*/bash")) if _runs(path)), None)
    if bash is None:
        raise ReferenceMissing(f"none of the patched shells in {tool / 'bash'} runs here")
    named = target / "codex-linux-sandbox"  # the name is how that program knows what it is to be
    if not named.exists():
        named.symlink_to(helper)
    return ShellTool(tool / "codex-exec-mcp-server", tool / "codex-execve-wrapper", bash, named)


def _runs(shell: Path) -> bool:
    return subprocess.run([shell, "-c", ":"], capture_output=True, timeout=20, check=False).returncode == 0


def _install(packages: list[str], target: Path) -> None:
    names = " and ".join(packages)
    npm = shutil.which("npm")
    if npm is None:
        raise ReferenceMissing(f"{names} is not in {target} and there is no npm to install it with")
    target.mkdir(parents=True, exist_ok=True)
    command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(target), *packages]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_WAIT, check=False)
    except subprocess.TimeoutExpired:
        raise ReferenceMissing(f"installing {names} took more than {INSTALL_WAIT} s") from None
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
    finds: dict[str, Callable[[], Path]] = {
        version: partial(reference_binary, version) for version in VERSIONS
    }
    finds[f"shell tool {SHELL_TOOL_VERSION}"] = lambda: shell_tool().server
    for version, find in finds.items():
        try:
            sys.stdout.write(f"{version}: {find()}\n")
        except ReferenceMissing as missing:
            sys.stderr.write(f"{version}: {missing}\n")
            code = 1
    return code


if __name__ == "__main__":
    raise SystemExit(main())
