"""The row `execbox` of `bench sdk`: how long a test waits for its private server of pytest-execserver.

A pytest of its own, with the plugin, notes the set-up of the fixture `execbox` for each test; each test also
starts an interpreter that does nothing, which shows how quick the machine was just then.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

from bench.sdk_work import Figures, expect

ROOT = Path(__file__).resolve().parents[1]
_LIMIT_S = 600
# By its path, not by PYTHONPATH, which the server would inherit.
_PYTEST = """
import sys
sys.path[:0] = sys.argv[1:]
import pytest
sys.exit(pytest.main(["-q", "-p", "pytest_execserver.plugin", "-p", "no:cacheprovider", "--rootdir", "."]))
"""
_CONFTEST = """
import json, time, pytest

found = {"server": [], "bare": []}

@pytest.hookimpl(hookwrapper=True)
def pytest_fixture_setup(fixturedef):
    begun = time.perf_counter()
    yield
    if fixturedef.argname == "execbox":
        found["server"].append(time.perf_counter() - begun)

@pytest.fixture
def bare():
    return found["bare"]

def pytest_sessionfinish():
    with open("notes.json", "w") as file:
        json.dump(found, file)
"""
_TESTS = """
import subprocess, sys, time, pytest

@pytest.mark.parametrize("number", range({count}))
def test_runs(execbox, bare, number):
    assert execbox.run(["true"]).ok
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    bare.append(time.perf_counter() - begun)
"""


def set_ups(python: str, program: str, count: int) -> Figures:
    """Return the medians of so many tests; the first one, which fills caches, is left out."""
    with tempfile.TemporaryDirectory(prefix="bench-sdk-") as folder:
        place = Path(folder)
        (place / "conftest.py").write_text(_CONFTEST)
        (place / "test_boxes.py").write_text(_TESTS.format(count=count + 1))
        done = subprocess.run(
            [python, "-c", _PYTEST, str(ROOT), str(ROOT / "sdk")],
            cwd=folder,
            env=_environment(program),
            capture_output=True,
            timeout=_LIMIT_S,
            check=False,
        )
        expect(done.returncode, 0, "status of pytest")
        notes: dict[str, list[float]] = json.loads((place / "notes.json").read_text())
    expect(len(notes["server"]), count + 1, "servers")
    server, bare = (statistics.median(notes[name][1:]) * 1000 for name in ("server", "bare"))
    return {"execbox, set-up": server, "`python -c pass` beside it": bare}


def _environment(program: str) -> dict[str, str]:
    given = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "EXECSERVER"))
    }
    return {**given, "EXECSERVER_PROGRAM": program}
