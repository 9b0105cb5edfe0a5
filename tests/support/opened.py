"""What another user needs to start things of this project: where that is closed to it, copies that are not.

The checkout, its environment and the interpreter may lie in somebody's home.  Copies are made once for a run
of the tests, in a temporary folder that is removed at its end.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import site
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.source import ROOT

_SOURCE = ("execserver", "helpers", "tests")
# Half of the environment, and of no use to a server.
_TOOLS = ("mypy", "mypyc", "ruff", "PyInstaller", "pip", "setuptools", "ziglang", "__pycache__")


def is_open(path: Path | str) -> bool:
    """Tell whether every user can reach and read what a path leads to."""
    for place in (Path(path).absolute(), Path(path).resolve()):
        if not all(parent.stat().st_mode & 0o001 for parent in place.parents):
            return False
    needed = 0o005 if os.path.isdir(path) else 0o004
    return os.stat(path).st_mode & needed == needed


def open_source() -> Path:
    """Return a folder with this project's modules."""
    return ROOT if all(map(is_open, (ROOT, *(ROOT / name for name in _SOURCE)))) else _copied_source()


def open_program(program: str) -> str:
    """Return a file, e.g. a built one, or an open copy of it."""
    return program if is_open(program) else _copied_program(program)


def open_python() -> str:
    """Return an interpreter every user can start, of this one's version, or skip."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for program in (sys.executable, f"/usr/local/bin/{version}", f"/usr/bin/{version}"):
        if os.path.exists(program) and is_open(program):
            return program
    pytest.skip(f"there is no {version} that another user could start")


def open_search_path() -> str:
    """Return what PYTHONPATH has to be for such an interpreter: this project, and what it needs."""
    # Debian's names folders that are not there.
    places = filter(os.path.isdir, site.getsitepackages())
    packages = [path if is_open(path) else _copied_packages(path) for path in places]
    return os.pathsep.join((str(open_source()), *packages))


@functools.cache
def _copied_source() -> Path:
    target = _folder() / "source"
    for name in _SOURCE:
        _copy(ROOT / name, target / name)
    return target


@functools.cache
def _copied_program(program: str) -> str:
    target = _folder() / Path(program).name
    shutil.copyfile(program, target)
    target.chmod(0o755)
    return str(target)


@functools.cache
def _copied_packages(path: str) -> str:
    target = _folder() / "packages"
    _copy(Path(path), target)
    return str(target)


def _copy(origin: Path, target: Path) -> None:
    shutil.copytree(origin, target, ignore=shutil.ignore_patterns(*_TOOLS))
    for folder, _, names in os.walk(target):
        os.chmod(folder, 0o755)
        for name in names:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                os.chmod(path, os.stat(path).st_mode | 0o444)


@functools.cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="execserver-opened-"))
    folder.chmod(0o755)
    atexit.register(_remove, os.getpid(), folder)
    return folder


def _remove(maker: int, folder: Path) -> None:
    if os.getpid() == maker:  # not in a forked child
        shutil.rmtree(folder, ignore_errors=True)
