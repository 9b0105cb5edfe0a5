"""The name the file is called by reaches the program, whatever way the call came."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.conftest import FILES
from tests.support.one_file import REPLY, REQUEST, Box
from tests.support.roots import open_folder
from tests.support.source import ROOT

NAME = "codex-fs"


def ask(box: Box, command: list[str], executable: Path | None = None, cwd: Path | None = None) -> bytes:
    """Return the reply of a file helper to REQUEST."""
    done = subprocess.run(
        command,
        executable=executable,
        cwd=cwd,
        env=box.variables,
        input=REQUEST,
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout


@pytest.mark.unpacked
def test_a_symlink_selects_by_its_name(box: Box, tmp_path: Path) -> None:
    absolute = tmp_path / NAME
    absolute.symlink_to(box.program)
    assert ask(box, [str(absolute)]) == REPLY
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / NAME).symlink_to(os.path.relpath(box.program, folder))
    assert ask(box, [f"./{NAME}"], cwd=folder) == REPLY
    box.variables["PATH"] = f"{folder}:{box.variables['PATH']}"
    assert ask(box, ["sh", "-c", NAME]) == REPLY
    (tmp_path / "further").mkdir()
    (tmp_path / "further" / NAME).symlink_to(folder / NAME)
    assert ask(box, [str(tmp_path / "further" / NAME)]) == REPLY


@pytest.mark.unpacked
def test_a_copied_file_selects_by_its_name(box: Box, tmp_path: Path) -> None:
    copy = tmp_path / NAME
    shutil.copy(box.program, copy)
    assert ask(box, [str(copy)]) == REPLY


@pytest.mark.unpacked
@pytest.mark.parametrize("forced", [NAME, f"/no/such/folder/{NAME}"])
def test_a_name_forced_into_the_first_word_selects(forced: str, one_file: Box) -> None:
    assert ask(one_file, [forced], executable=one_file.program) == REPLY


@pytest.mark.unpacked
def test_words_arrive_as_they_are(one_file: Box) -> None:
    odd = os.fsdecode(b"--listen=\xff \n*'")
    done = one_file.run([odd])
    assert done.returncode == 1
    assert "\ufffd".encode() in done.stderr or b"\xff" in done.stderr


@pytest.mark.unpacked
def test_aliases_lead_to_the_file_not_to_its_tree(box: Box, tmp_path: Path) -> None:
    done = box.run(["install-aliases", tmp_path])
    assert (done.returncode, done.stderr) == (0, b"")
    assert os.path.realpath(tmp_path / NAME) == str(box.program)
    assert ask(box, [str(tmp_path / NAME)]) == REPLY


@pytest.mark.unpacked
def test_the_wrapper_needs_no_tree(one_file: Box, tmp_path: Path) -> None:
    """It starts in other programs' environments, and where nothing can be written."""
    if one_file.program.read_bytes()[:4] != b"\x7fELF":
        pytest.skip("built without a C compiler")
    link, home = tmp_path / "codex-execve-wrapper", tmp_path / "nobodys"
    link.symlink_to(one_file.program)
    home.mkdir()
    variables = {"HOME": str(home), "TMPDIR": str(home)}
    words = [str(link), "/bin/true", "true"]
    done = subprocess.run(words, env=variables, capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (1, b"Error: environment variable not found\n")
    assert list(home.iterdir()) == []


@pytest.mark.unpacked
def test_the_program_checks_itself(box: Box) -> None:
    done = box.run(["self-test"])
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\nOK in " in done.stdout


@pytest.mark.parametrize("name", FILES)
def test_an_ordinary_user_can_start_it(name: str, dist: Path) -> None:
    setpriv = shutil.which("setpriv")
    if os.geteuid() != 0 or setpriv is None:
        pytest.skip("only root can become another user, with `setpriv`")
    with open_folder() as folder:
        program = folder / "program"
        shutil.copy(dist / name, program)
        box = Box(program, folder)
        for path in (box.home, box.temporary):
            os.chown(path, 12345, 12345)
        command = [setpriv, "--reuid=12345", "--regid=12345", "--clear-groups", str(program), "self-test"]
        done = subprocess.run(command, env=box.variables, capture_output=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, b""), done.stdout
        assert {path.stat().st_uid for path in box.cache.rglob("*")} == {12345}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can refuse namespaces to others")
def test_a_machine_without_a_sandbox_is_told_beside_the_ok(dist: Path) -> None:
    with open_folder() as folder:
        program = folder / "program"
        shutil.copy(dist / "execserver", program)
        box = Box(program, folder)
        for path in (box.home, box.temporary):
            os.chown(path, 12345, 12345)
        refused = [sys.executable, "-m", "tests.support.refused", "limit", "12345", "--"]
        variables = {**box.variables, "PATH": "/nowhere", "PYTHONPATH": str(ROOT)}
        command = [*refused, str(program), "self-test"]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    *_, last, cure = done.stdout.splitlines()
    assert re.fullmatch(r"OK in \d+ ms, but sandboxed requests are refused here: .+", last)
    assert "user.max_user_namespaces=0" in last
    assert cure == "  What to do: sysctl -w user.max_user_namespaces=15000, or see `execserver doctor`"
