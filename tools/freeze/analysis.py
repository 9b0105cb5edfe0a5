"""Runs PyInstaller's analysis and gives its result as plain values."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

from tools.freeze.contents import carried_modules, is_left_out
from tools.problems import Problem

SPEC = Path(__file__).with_name("execserver.spec")


class Analysis(NamedTuple):
    """Name -> file of the modules' sources, of the extension modules, and of other libraries."""

    modules: dict[str, Path]
    extensions: dict[str, Path]
    libraries: dict[str, Path]


def analyse(python: Path, work: Path) -> Analysis:
    """Return what the program needs.  Raises Problem when PyInstaller fails."""
    result = work / "analysis.json"
    result.unlink(missing_ok=True)
    command = [str(python), "-I", "-m", "PyInstaller", "--noconfirm", "--log-level", "WARN"]
    command += ["--workpath", str(work / "pyinstaller"), "--distpath", str(work / "unused"), str(SPEC)]
    # A cache of its own: the one in the home folder is shared with other projects and never pruned.
    variables = {
        **os.environ,
        "EXECSERVER_ANALYSIS": str(result),
        "PYINSTALLER_CONFIG_DIR": str(work / "cache"),
    }
    done = subprocess.run(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode or not result.exists():
        raise Problem(
            f"PyInstaller failed:\n{done.stdout.strip()}", "remove .venv and build/ and start again"
        )
    found = json.loads(result.read_text())
    binaries = [(str(target), Path(source), str(kind)) for target, source, kind in found["binaries"]]
    return Analysis(
        carried_modules(
            {name: Path(path) for name, path in found["modules"].items() if not is_left_out(name)}
        ),
        {
            name: source
            for target, source, kind in binaries
            if kind == "EXTENSION" and not is_left_out(name := _extension_name(target))
        },
        {Path(target).name: source for target, source, kind in binaries if kind == "BINARY"},
    )


def _extension_name(target: str) -> str:
    """Return the module behind `gevent/_event.cpython-311-x86_64-linux-gnu.so` or `lib-dynload/math...so`."""
    path = Path(target)
    folder = () if path.parent.name == "lib-dynload" else path.parent.parts
    return ".".join((*folder, path.name.partition(".")[0]))
