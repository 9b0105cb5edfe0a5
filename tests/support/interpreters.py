"""Finds the other Python interpreters of this machine, for tests of what claims to run on them.

It is that of the tests, or one on PATH or in a folder where pyenv or uv keep theirs, and counts only if it
starts and makes environments: pyenv puts a program on PATH for each version that it has, of which most refuse
to start.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_PROBE = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
_PROBE_LIMIT_S = 30


def find(version: str) -> Path | None:
    """Return an interpreter of a version, such as `3.12`; None if there is none that makes environments."""
    return next((each for each in _candidates(f"python{version}") if _is(each, version)), None)


def _candidates(name: str) -> Iterator[Path]:
    yield Path(sys.executable)
    for folder in os.get_exec_path():
        if found := shutil.which(name, path=folder):
            yield Path(found)
    home = Path.home()
    for kept in (
        Path(os.environ.get("PYENV_ROOT", home / ".pyenv")) / "versions",
        Path(os.environ.get("UV_PYTHON_INSTALL_DIR", home / ".local" / "share" / "uv" / "python")),
    ):
        yield from sorted(kept.glob(f"*/bin/{name}"))


def _is(python: Path, version: str) -> bool:
    try:
        done = subprocess.run(
            [python, "-I", "-c", _PROBE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROBE_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.strip() == version
