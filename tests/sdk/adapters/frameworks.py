"""Environments of the frameworks: each with exactly the versions that `sdk/requirements-adapters-*.txt` pins.

They are made on demand in `~/.cache/execserver-frameworks`, or in the folder that `EXECSERVER_FRAMEWORKS`
names, from the index that pip is configured for, and used again as long as the pins stay the same.  Of
somebody else's folder only what is whole is used; the rest is made in one's own.  Tests run in them with the
pytest of that environment, against a server of this checkout.

Where no package of the pins can be had at all there is no index, and the test is left out with pip's words.
Where only some cannot be had the pins are wrong, and the test fails with pip's words.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.server_process import ServerProcess
from tests.support.source import ROOT

WITHIN = Path(__file__).parent / "within"
FOLDER_VARIABLE = "EXECSERVER_FRAMEWORKS"
_INSTALL_S = 800.0
_PROBE_S = 120.0
_PLAY_S = 600.0
_PIP = ("-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check", "--retries", "2")
_TOLD = 2000  # characters of what pip says
_OPEN = 0o022  # what others may play with as well


def python_of(framework: str) -> Path:
    """Return the interpreter of a framework's environment, made if there is none yet.

    Leaves the test out where no package can be had; raises AssertionError where the pins cannot be installed.
    """
    pins = ROOT / "sdk" / f"requirements-adapters-{framework}.txt"
    digest = hashlib.sha256(pins.read_bytes() + sys.version.encode()).hexdigest()[:16]
    name = f"{framework}-{digest}"
    own = Path.home() / ".cache" / "execserver-frameworks"
    given = Path(os.environ.get(FOLDER_VARIABLE) or own)
    for folder in (given / name, own / name):
        if _is_whole(folder):
            return folder / "bin" / "python"
    chosen = given if _is_writable(given) else own
    with _alone_in(chosen, name):
        if not _is_whole(chosen / name):  # another process may have made it meanwhile
            _make(chosen / name, pins)
    return chosen / name / "bin" / "python"


def _is_whole(folder: Path) -> bool:
    """Tell whether an environment is there, with an interpreter that this user can start."""
    try:
        return (folder / "whole").exists() and os.access(folder / "bin" / "python", os.X_OK)
    except PermissionError:
        return False


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


@contextmanager
def _alone_in(folder: Path, name: str) -> Iterator[None]:
    """Wait until no other process makes the environment of that name."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(folder: Path, pins: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # an installation that was cut begins anew
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=_INSTALL_S, umask=_OPEN)
    told = _pip(folder, _INSTALL_S, "install", "-r", str(pins))
    if told is not None:
        probe = _pip(folder, _PROBE_S, "install", "--dry-run", "--no-deps", _first_of(pins))
        if probe is not None:
            pytest.skip(f"no package index can be used here, nor is {folder} there: {probe}")
        raise AssertionError(f"{pins.name} cannot be installed with this Python; change its versions: {told}")
    (folder / "whole").touch()


def _first_of(pins: Path) -> str:
    """Return pytest's own pin: a package that runs with every Python that this checkout runs with."""
    return next(line for line in pins.read_text().splitlines() if line.startswith("pytest=="))


def _pip(folder: Path, seconds: float, *words: str) -> str | None:
    """Run pip in an environment; returns None, or what it says is wrong."""
    command = (str(folder / "bin" / "python"), *_PIP, *words)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=seconds, umask=_OPEN
        )
    except subprocess.TimeoutExpired:
        return f"pip took more than {seconds:g} s"
    lines = [line[:300] for line in done.stderr.splitlines() if line.startswith("ERROR:")]
    return None if done.returncode == 0 else "\n".join(lines)[-_TOLD:] or done.stderr[-_TOLD:]


def play(framework: str, module: str, server: ServerProcess, place: Path, *options: str) -> str:
    """Run one module of tests within a framework's environment; returns what it printed if all passed."""
    wanted = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    own = ("-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", "--import-mode=importlib")
    settings = ("-c", os.devnull, f"--rootdir={WITHIN}", "-W", "default", *options)
    done = subprocess.run(
        (str(python_of(framework)), *own, *settings, str(WITHIN / module)),
        env={
            **wanted,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "sdk")]),
            "EXECSERVER_TEST_BOX": server.url,
            "EXECSERVER_TEST_PLACE": str(place),
        },
        cwd=place,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_PLAY_S,
    )
    told: str = done.stdout
    assert done.returncode == 0, told[-8000:]
    return told
