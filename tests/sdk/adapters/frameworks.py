"""Environments of the frameworks: each with exactly the versions that `sdk/requirements-adapters-*.txt` pins.

They are made on demand in `~/.cache/execserver-frameworks`, or in the folder that `EXECSERVER_FRAMEWORKS`
names, from the index that pip is configured for, and used again as long as the pins stay the same.  Tests run
in them with that environment's own pytest, against a server of this checkout.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.server_process import ServerProcess
from tests.support.source import ROOT

WITHIN = Path(__file__).parent / "within"
FOLDER_VARIABLE = "EXECSERVER_FRAMEWORKS"
_INSTALL_S = 800.0
_PLAY_S = 600.0


def python_of(framework: str) -> Path:
    """Return the interpreter of a framework's environment, made if there is none yet."""
    pins = ROOT / "sdk" / f"requirements-adapters-{framework}.txt"
    digest = hashlib.sha256(pins.read_bytes() + sys.version.encode()).hexdigest()[:16]
    default = Path.home() / ".cache" / "execserver-frameworks"
    folder = Path(os.environ.get(FOLDER_VARIABLE, default)) / f"{framework}-{digest}"
    python = folder / "bin" / "python"
    whole = folder / "whole"  # written last: an installation that was cut begins anew
    if not whole.exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=_INSTALL_S)
        install = (str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r", str(pins))
        subprocess.run(install, check=True, timeout=_INSTALL_S)
        whole.touch()
    return python


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
