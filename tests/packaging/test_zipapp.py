"""What is peculiar to dist/execserver.pyz: it runs in whatever Python a machine has."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.one_file import Box
from tools.freeze import pyz_main

TELL_TAG = """
import sys
sys.path.insert(0, sys.argv[1])
from pyz_main import tag
print(tag())
"""


def interpreters() -> dict[str, str]:
    """Return tag -> program of every working Python here that has one."""
    found: dict[str, str] = {}
    for place in (Path("/usr/bin"), Path("/usr/local/bin"), *Path(sys.base_prefix).parent.glob("*/bin")):
        for program in sorted(place.glob("python3.*")):
            command = [str(program), "-I", "-c", TELL_TAG, str(Path(pyz_main.__file__).parent)]
            if program.suffix[1:].isdigit():
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode == 0:
                    found.setdefault(done.stdout.strip(), str(program))
    return found


def run(box: Box, python: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [python, str(box.program), *words]
    return subprocess.run(command, env=box.variables, capture_output=True, text=True, timeout=60, check=False)


def served(box: Box) -> dict[str, str]:
    with zipfile.ZipFile(box.program) as packed:
        return dict(line.split() for line in packed.read(pyz_main.TREES_FILE).decode().splitlines())


def test_every_python_here_has_its_own_tree(zipapp: Box) -> None:
    trees = served(zipapp)
    usable = {tag: program for tag, program in interpreters().items() if tag in trees}
    assert pyz_main.tag() in usable
    for program in usable.values():
        done = run(zipapp, program, "--version")
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        # A further start of each with what the others have left.
        started = subprocess.Popen(
            [program, str(zipapp.program)],
            env=zipapp.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert started.stdout is not None
        assert started.stdout.readline().startswith("ws://")
        started.terminate()
        _, errors = started.communicate(timeout=30)
        assert (started.returncode, errors) == (0, "")
    names = {path.name for path in zipapp.cache.iterdir() if not path.name.startswith(".")}
    assert names == {trees[tag] for tag in usable}


def test_a_python_that_is_not_served_is_told_so(zipapp: Box) -> None:
    others = {tag: program for tag, program in interpreters().items() if tag not in served(zipapp)}
    if not others:
        pytest.skip("every Python 3 of this machine is served")
    for tag, program in others.items():
        done = run(zipapp, program, "--version")
        assert (done.returncode, done.stdout) == (1, "")
        assert f"this Python is {tag}" in done.stderr
        assert "which needs no Python" in done.stderr


def test_what_comes_from_outside_stays_out(zipapp: Box, tmp_path: Path) -> None:
    for name in ("json", "gevent", "execserver", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('loaded from outside')\n")
    zipapp.variables["PYTHONPATH"] = str(tmp_path)
    (tmp_path / "sitecustomize.py").unlink()  # read by the first interpreter already, as by all of the user's
    done = run(zipapp, sys.executable, "self-test")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_without_the_mark_of_a_program_it_starts_too(zipapp: Box, tmp_path: Path) -> None:
    copy = tmp_path / "copy.pyz"
    shutil.copyfile(zipapp.program, copy)
    zipapp.program = copy
    done = run(zipapp, sys.executable, "self-test")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
