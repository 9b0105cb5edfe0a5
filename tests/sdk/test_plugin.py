"""The pytest plugin, in a pytest of its own: private boxes, and what is said without the program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.programs import write_script
from tests.support.source import ROOT

TESTS = """
import asyncio

def test_plain(execbox):
    assert execbox.run(["sh", "-c", "echo private"]).text == "private\\n"

def test_sandboxed(execbox_sandboxed, tmp_path):
    script = f"echo inside > {tmp_path}/in; echo outside > {tmp_path.parent}/out"
    assert execbox_sandboxed.run(["sh", "-c", script]).exit_code != 0
    assert (tmp_path / "in").read_text() == "inside\\n"
    assert not (tmp_path.parent / "out").exists()

def test_async(execbox_async):
    async def main():
        async with execbox_async() as box:
            return (await box.run(["true"])).ok
    assert asyncio.run(main())
"""


def outcome(folder: Path, program: str) -> str:
    (folder / "test_boxes.py").write_text(TESTS)
    given = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "EXECSERVER"))
    }
    variables = {
        **given,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}",
        "EXECSERVER_PROGRAM": program,
        "EXECSERVER_BOX": "ws://127.0.0.1:1",  # somebody's real box, which no test may touch
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rs",
        "-p",
        "pytest_execserver.plugin",
        "--rootdir",
        ".",
    ]
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=50, check=False
    )
    return done.stdout


def test_each_fixture_is_a_private_box(tmp_path: Path) -> None:
    main = ROOT / "execserver" / "__main__.py"
    program = write_script(tmp_path / "execserver", f'exec {sys.executable} -I {main} "$@"')
    said = outcome(tmp_path, str(program))
    assert "3 passed" in said or ("2 passed, 1 skipped" in said and "no sandbox works here" in said), said
