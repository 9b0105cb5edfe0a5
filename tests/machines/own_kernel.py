"""A kernel that Debian has no package of, built from its source for aarch64: one with pages of 64 KiB.

It has what a sandbox can ask for, no modules, and the drivers of an emulated machine: some minutes of work.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tools.debian import Suite, unpack
from tools.problems import Problem, say

SOURCE = "linux-source-"  # how the packages are called whose kernel is built
_CONFIG = Path(__file__).with_name("pages_64k.config")
_COMPILER = "aarch64-linux-gnu-"
_NEEDED = ("make", "flex", "bison", "bc", f"{_COMPILER}gcc")
_STEPS = (  # in the folder of the source
    ["make", "-s", "allnoconfig"],
    ["scripts/kconfig/merge_config.sh", "-m", ".config", str(_CONFIG)],
    ["make", "-s", "olddefconfig"],
    ["make", "-s", f"-j{os.cpu_count() or 1}", "Image"],
)


def is_wanted(package: str) -> bool:
    """Tell whether a package is a source."""
    return package.startswith(SOURCE)


def kernel(suite: Suite, package: str, folder: Path) -> Path:
    """Return the kernel, built once for each configuration into a folder.  Raises Problem."""
    digest = hashlib.sha256(_CONFIG.read_bytes()).hexdigest()[:16]
    image = folder / f"{package}-{digest}"
    if image.exists():
        return image
    missing = [name for name in _NEEDED if shutil.which(name) is None]
    if missing:
        raise Problem(
            f"no kernel can be built here: there is no {', '.join(missing)}",
            "apt install make flex bison bc gcc-aarch64-linux-gnu",
        )
    say(f"building the kernel of {package} (once, some minutes)")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        unpack(suite.fetch(package), Path(work))
        _run(["tar", "-xf", f"usr/src/{package}.tar.xz"], Path(work))
        source = Path(work) / package
        for step in _STEPS:
            _run(step, source)
        (source / "arch" / "arm64" / "boot" / "Image").replace(image)
    return image


def _run(command: list[str], folder: Path) -> None:
    variables = {**os.environ, "ARCH": "arm64", "CROSS_COMPILE": _COMPILER}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        told = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise Problem(f"`{' '.join(command)}` failed: {told}", "look at the packages that the build needs")
