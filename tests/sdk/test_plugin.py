"""The pytest plugin, in a pytest of its own: private boxes, and what is said without the program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import write_script
from tests.support.server_process import PROGRAM_VARIABLE
from tests.support.source import ROOT

pytestmark = pytest.mark.timeout(180)  # several programs start one after the other, on a busy machine

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


SHARED = """
import os

def test_starts_it(execbox_session):
    assert os.environ["EXECSERVER_BOX"]
    execbox_session.start(["sleep", "1000"], process_id="of another test")

def test_has_the_same(execbox_session):
    assert [each.process_id for each in execbox_session.processes()] == ["of another test"]

def test_has_its_own(execbox):
    assert not execbox.processes()
"""

MISSING = """
import pytest

@pytest.fixture(params=["", "/nowhere/execserver"], autouse=True)
def program(request, monkeypatch):
    monkeypatch.setenv("EXECSERVER_PROGRAM", request.param)

def test_of_its_own(execbox):
    pass

def test_shared(execbox_session):
    pass
"""


def outcome(folder: Path, program: str, tests: str = TESTS, **changed: str) -> str:
    (folder / "test_boxes.py").write_text(tests)
    given = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "EXECSERVER"))
    }
    variables = {
        **given,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}",
        "EXECSERVER_PROGRAM": program,
        "EXECSERVER_BOX": "ws://127.0.0.1:1",  # somebody's real box, which no test may touch
        **changed,
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
        "--basetemp",  # others' folders would be looked through, and old ones removed
        "temporary",
    ]
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=150, check=False
    )
    return done.stdout


def program(folder: Path) -> str:
    """Return a program that starts the server: the built file, if there is one."""
    main = ROOT / "execserver" / "__main__.py"
    source = write_script(folder / "execserver", f'exec {sys.executable} -I {main} "$@"')
    return os.environ.get(PROGRAM_VARIABLE, str(source))


def test_each_fixture_is_a_private_box(tmp_path: Path) -> None:
    said = outcome(tmp_path, program(tmp_path))
    assert "3 passed" in said or ("2 passed, 1 skipped" in said and "no sandbox works here" in said), said


@pytest.mark.parametrize("page", ["docs/sdk.md", "sdk/pytest.md"])
def test_the_snippets_of_the_pages_pass(tmp_path: Path, page: str) -> None:
    snippets = re.findall(r"^```py\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    write_script(tmp_path / "mytool", "echo mytool 1.0")  # what the pages test
    path = f"{tmp_path}:{os.environ['PATH']}"
    said = outcome(tmp_path, program(tmp_path), "\n".join(snippets), PATH=path)
    assert "1 passed" in said, said


def test_one_box_can_serve_all_tests(tmp_path: Path) -> None:
    said = outcome(tmp_path, program(tmp_path), SHARED)
    assert "3 passed" in said, said


def test_without_the_program_the_setup_says_how_to_get_it(tmp_path: Path) -> None:
    said = outcome(tmp_path, "", MISSING, PATH=str(tmp_path))
    assert "4 errors" in said, said
    for fixture in ("execbox", "execbox_session"):
        assert f"{fixture}: no box is named, and there is no program execserver on PATH" in said
    assert "set EXECSERVER_BOX or EXECSERVER_PROGRAM, or install execserver" in said
    assert "execbox: cannot start /nowhere/execserver" in said
    assert "EXECSERVER_PROGRAM names the program" in said
    assert "Traceback" not in said
    assert "exception" not in said
