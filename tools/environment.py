"""The project's own Python environment: made when missing, adopted when there, never touched when up to date.

`.venv` is up to date when the marker of the wanted set holds the hash of its requirement files.  Two drivers
that start at once are kept apart by a lock on the project folder.  What goes wrong is raised as a Problem,
which says what to do about it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tools.interpreter import best_build
from tools.problems import Problem, explain_pip, explain_venv, from_os_error, not_ours, say, too_new

MINIMUM_PYTHON = (3, 11)
NEWEST_PYTHON = (3, 14)  # the last one that every pinned package has a build for

# Set -> its requirement files; the larger set holds the smaller one.
REQUIREMENT_FILES = {
    "run": ("requirements.txt",),
    "dev": ("requirements.txt", "requirements-dev.txt"),
}

_SHORT_STEP_S = 60

_FACTS_SCRIPT = """
import importlib.util, json, sys, sysconfig
has_pip = importlib.util.find_spec("pip") is not None
print(json.dumps([sys.version_info[:2], sysconfig.get_path("purelib"), has_pip]))
"""

_UNMET_SCRIPT = """
import importlib.metadata, json, sys
def installed(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
pins = [pin.partition("==") for pin in json.loads(sys.argv[1])]
print(json.dumps([name + "==" + wanted for name, _, wanted in pins if installed(name) != wanted]))
"""


class Environment(NamedTuple):
    """A usable environment: its interpreter and the folder its packages lie in."""

    python: Path
    site_packages: Path


class _Facts(NamedTuple):
    version: tuple[int, int]
    site_packages: Path
    has_pip: bool


def prepare(root: Path, wanted: str) -> Environment:
    """Return the environment with the pins of a set (`run` or `dev`) installed; complete it if needed."""
    venv = root / ".venv"
    files = [root / name for name in REQUIREMENT_FILES[wanted]]
    ready = _ready(venv, wanted, files)
    if ready is not None:
        return ready
    if not os.access(root, os.W_OK):
        raise not_ours(root)
    try:
        with locked(root, "waiting for another build.py that prepares .venv"):
            return _ready(venv, wanted, files) or _complete(root, venv, wanted, files)
    except OSError as error:
        raise from_os_error(error, root) from error


def pins(files: list[Path]) -> list[str]:
    """Return `name==version` for every line of some requirement files."""
    found = []
    for file in files:
        for line in file.read_text().splitlines():
            pin = line.partition("#")[0].strip()
            if pin:
                found.append(pin)
    return found


def fingerprint(files: list[Path]) -> str:
    """Return a hash that changes when a pin changes; comments do not count."""
    return hashlib.sha256("\n".join(pins(files)).encode()).hexdigest()


def _marker(venv: Path, wanted: str) -> Path:
    return venv / f".execserver-{wanted}"


def _ready(venv: Path, wanted: str, files: list[Path]) -> Environment | None:
    try:
        marked = _marker(venv, wanted).read_text()
    except OSError:
        return None
    facts = _facts(_python(venv)) if marked == fingerprint(files) else None
    return Environment(_python(venv), facts.site_packages) if facts else None


def _python(venv: Path) -> Path:
    return venv / "bin" / "python3"


def _facts(python: Path) -> _Facts | None:
    """Ask an interpreter about itself; None if it does not run, is too old or has lost its packages."""
    try:
        command = [str(python), "-I", "-c", _FACTS_SCRIPT]
        done = subprocess.run(command, capture_output=True, timeout=_SHORT_STEP_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    version, site_packages, has_pip = json.loads(done.stdout)
    if tuple(version) < MINIMUM_PYTHON or not Path(site_packages).is_dir():
        return None
    return _Facts(tuple(version), Path(site_packages), has_pip)


def _complete(root: Path, venv: Path, wanted: str, files: list[Path]) -> Environment:
    """Make what is missing.  The marker is written last, so an interrupted run is simply repeated."""
    started = time.monotonic()
    python = _python(venv)
    facts = _facts(python)
    if facts is None:
        say(f"making {venv}")
        _make(venv)
        facts = _facts(python)
        if facts is None:
            raise Problem(f"{python} does not run", f"remove {venv} and start again")
    unmet = _unmet(python, pins(files))
    if unmet:
        if not facts.has_pip:
            _run([str(python), "-I", "-m", "ensurepip"], explain_venv)
        say(f"installing {len(unmet)} pinned packages into {venv} (once; needs the network)")
        requirements = [word for file in files for word in ("-r", str(file))]
        _run([str(python), "-I", "-m", "pip", *_PIP_INSTALL, *requirements], explain_pip)
        unmet = _unmet(python, pins(files))
        if unmet:
            raise Problem(f"pip left out {', '.join(unmet)}", f"remove {venv} and start again")
        say(f"ready after {time.monotonic() - started:.0f} s")
    for name, names in REQUIREMENT_FILES.items():
        if len(names) <= len(files):
            _write(_marker(venv, name), fingerprint([root / each for each in names]))
    return Environment(python, facts.site_packages)


# Without dependencies: all of them are pinned, and what is not pinned must not come in.
_PIP_INSTALL = ("install", "--no-deps", "--disable-pip-version-check", "--no-input", "--progress-bar", "off")


def _unmet(python: Path, wanted: list[str]) -> list[str]:
    """Return the pins an environment does not hold in exactly that version."""
    command = [str(python), "-I", "-c", _UNMET_SCRIPT, json.dumps(wanted)]
    done = subprocess.run(command, capture_output=True, timeout=_SHORT_STEP_S, check=False)
    found = json.loads(done.stdout) if done.returncode == 0 else wanted
    return [str(pin) for pin in found]


def _make(venv: Path) -> None:
    _run([_interpreter(), "-I", "-m", "venv", "--clear", str(venv)], explain_venv)


def _interpreter() -> str:
    """Return the Python to make the environment of: this one in its best build, or an older one."""
    version = sys.version_info[:2]
    if version <= NEWEST_PYTHON:
        return best_build()
    for minor in range(NEWEST_PYTHON[1], MINIMUM_PYTHON[1] - 1, -1):
        found = shutil.which(f"python3.{minor}")
        if found and _facts(Path(found)):
            return found
    raise too_new(version, NEWEST_PYTHON)


def _run(command: list[str], explain: Callable[[str], Problem]) -> None:
    """Run a step silently; if it fails, raise what `explain` makes of its output."""
    to_us = subprocess.PIPE
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=to_us, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise explain(done.stdout)


def _write(file: Path, text: str) -> None:
    """Write a small file so that a reader sees all of it or nothing."""
    fresh = file.with_name(f"{file.name}.{os.getpid()}")
    fresh.write_text(text)
    fresh.replace(file)


@contextmanager
def locked(folder: Path, waiting: str) -> Iterator[None]:
    """Hold a folder's lock; it goes with the process, so a killed driver leaves none behind.

    `waiting` is what is said when somebody else holds it.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(waiting)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
