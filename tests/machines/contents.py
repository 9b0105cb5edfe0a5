"""What lies in a machine or a room: the small system, a Python, parts of the tests, the file."""

from __future__ import annotations

import compileall
import py_compile
import shutil
import tempfile
from pathlib import Path

from tests.machines.initramfs import Files, file, of_folder
from tests.machines.system import cache, system
from tests.support.source import ROOT
from tools.debian import unpack
from tools.freeze import packages
from tools.problems import Problem

PROGRAM = "usr/local/bin/execserver"
OWN = "opt/tests"
ONE_FILE, ZIPAPP = "execserver-{}", "execserver-all.pyz"  # the files that are tried
_LEFT_OUT = ("config-3.11", "lib2to3", "pydoc_data", "ensurepip", "idlelib", "test")


def contents(architecture: str, tried: str = ONE_FILE) -> Files:
    """Return what is in a machine: the system, Python and what tries the file, and the file."""
    program = ROOT / "dist" / tried.format(architecture)
    if not program.exists():
        raise Problem(f"there is no dist/{program.name}", "build it: python3 build.py build --all")
    with tempfile.TemporaryDirectory(prefix="execserver-machine-") as folder:
        own = _below(OWN, _tests(Path(folder) / "tests"))
    return {
        **system(architecture),
        **_python(architecture),
        **own,
        PROGRAM: file(program.read_bytes(), 0o755),
    }


def _python(architecture: str) -> Files:
    """Return Debian's Python, of the pinned packages, with its byte-code."""
    root = cache() / f"python-{architecture}"
    if not root.is_dir():
        fresh = root.with_suffix(".new")
        shutil.rmtree(fresh, ignore_errors=True)
        suite = packages.suite(architecture, ROOT / "build")
        for pin in packages.pinned(architecture):
            unpack(suite.fetch_pinned(pin), fresh)
        _compile(fresh / "usr" / "lib" / "python3.11")
        fresh.replace(root)
    found = {}
    for name, entry in of_folder(root).items():
        path = name if name.startswith("usr/") else f"usr/{name}"
        is_wanted = path.startswith(("usr/bin/python3.11", "usr/lib/"))
        if is_wanted and not any(f"/{part}/" in path for part in _LEFT_OUT):
            found[path] = entry
    return found


def _tests(folder: Path) -> Path:
    """Fill a folder with the parts of the checkout that run in a machine, with their byte-code; return it."""
    for name in (
        "tests/support",
        "tests/machines",
        "tests/mcp",
        "tests/transcripts",
        "execserver/sandbox/kernel",
    ):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("tests", "execserver", "execserver/sandbox"):
        shutil.copy(ROOT / name / "__init__.py", folder / name)
    for name in ("plan.py", "plan_record.py"):
        shutil.copy(ROOT / "execserver" / "sandbox" / name, folder / "execserver" / "sandbox")
    _compile(folder)
    return folder


def _below(place: str, folder: Path) -> Files:
    return {f"{place}/{name}": entry for name, entry in of_folder(folder).items()}


def _compile(folder: Path) -> None:
    """Write byte-code that is taken without a look at its source: compiling takes a slow machine minutes."""
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(folder, quiet=2, invalidation_mode=unchecked)
