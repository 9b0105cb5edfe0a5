"""`execserver install-aliases`: which links it makes, and what it never touches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from execserver import cli_help
from execserver.dispatch import NAMES
from execserver.version import CONTRACT_VERSION, __version__
from tests.support.programs import write_program
from tests.support.source import ROOT

HINT = "\nFor more information, try '--help'.\n"
USAGE = "\nUsage: execserver install-aliases [--codex] <DIR>\n"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "opt").mkdir()
    return write_program(Path(os.path.realpath(tmp_path), "opt", "execserver"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = Path(os.path.realpath(tmp_path), "bin")
    path.mkdir()
    return path


def run(program: Path | str, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, timeout=30, cwd=cwd, check=False
    )


def install(program: Path, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return run(program, "install-aliases", *arguments, cwd=cwd)


def test_every_name_becomes_a_link_to_the_program(program: Path, folder: Path) -> None:
    done = install(program, str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    assert {name: os.readlink(folder / name) for name in os.listdir(folder)} == dict.fromkeys(
        NAMES, str(program)
    )
    lines = done.stdout.splitlines()
    assert f"{folder}/codex-fs -> {program}" in lines


def test_the_links_are_the_programs_they_are_named_after(program: Path, folder: Path) -> None:
    install(program, str(folder))
    request = json.dumps({"operation": "fs/canonicalize", "params": {"path": "/"}})
    done = subprocess.run(
        [folder / "codex-fs"], input=request, capture_output=True, text=True, timeout=30, check=True
    )
    assert json.loads(done.stdout)["payload"]["response"] == {"path": "file:///"}
    assert run(folder / "codex-exec-server", "--help").stdout == cli_help.HELP


def test_a_link_named_codex_is_made_only_when_asked_for(program: Path, folder: Path) -> None:
    assert install(program, str(folder), "--codex").returncode == 0
    assert sorted(os.listdir(folder)) == sorted([*NAMES, "codex"])
    shown = run(folder / "codex", "--version")
    assert (shown.returncode, shown.stdout) == (
        0,
        f"codex-cli {CONTRACT_VERSION} (execserver {__version__})\n",
    )


def test_calling_it_again_changes_nothing(program: Path, folder: Path) -> None:
    first = install(program, str(folder))
    before = {name: os.lstat(folder / name).st_ino for name in os.listdir(folder)}
    again = install(program, str(folder))
    assert (again.returncode, again.stdout) == (0, first.stdout)
    assert {name: os.lstat(folder / name).st_ino for name in os.listdir(folder)} == before


def test_a_missing_link_is_added_to_those_that_are_there(program: Path, folder: Path) -> None:
    (folder / "codex-fs").symlink_to("../opt/execserver")  # another way of writing the same target
    assert install(program, str(folder)).returncode == 0
    assert os.readlink(folder / "codex-fs") == "../opt/execserver"
    assert sorted(os.listdir(folder)) == sorted(NAMES)


def test_links_beside_the_program_move_with_it(program: Path) -> None:
    assert install(program, str(program.parent)).returncode == 0
    moved = program.parent.rename(program.parent.with_name("moved"))
    assert run(moved / "codex-exec-server", "--version").stdout.startswith("execserver ")


def test_it_works_through_one_of_its_own_links(program: Path, folder: Path, tmp_path: Path) -> None:
    install(program, str(folder))
    (tmp_path / "other").mkdir()
    assert install(folder / "codex-exec-server", str(tmp_path / "other")).returncode == 0
    assert os.readlink(tmp_path / "other" / "codex-fs") == str(program)


def test_a_relative_folder_is_meant_from_where_it_is_called(program: Path, folder: Path) -> None:
    done = install(program, "bin", cwd=folder.parent)
    assert done.returncode == 0
    assert done.stdout.startswith(f"bin/codex-exec-server -> {program}\n")
    assert os.readlink(folder / "codex-fs") == str(program)


def state(path: Path) -> tuple[int, int, int]:
    """Return what replacing or changing a name would change; a link that was read has another access time."""
    found = os.lstat(path)
    return found.st_ino, found.st_mode, found.st_ctime_ns


@pytest.mark.parametrize("kind", ["file", "directory", "link", "dangling link"])
def test_what_is_not_its_own_is_kept_and_nothing_is_made(program: Path, folder: Path, kind: str) -> None:
    taken = folder / "codex-linux-sandbox"
    what = f"{taken} exists and is no link to this program"
    if kind == "file":
        taken.write_text("mine")
    elif kind == "directory":
        taken.mkdir()
    else:
        target = "/bin/sh" if kind == "link" else "/nowhere/execserver"
        taken.symlink_to(target)
        what = f"{taken} is a link to {target}, not to this program"
    before = state(taken)
    done = install(program, str(folder))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"Error: {what}\n  What to do: look at it; if nobody needs it, remove it: rm {taken}\n"
    )
    assert os.listdir(folder) == [taken.name]
    assert state(taken) == before


def test_a_folder_that_is_not_there_is_not_made(program: Path, folder: Path) -> None:
    done = install(program, f"{folder}/missing")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"Error: {folder}/missing is not a directory\n"
        f"  What to do: make it first: mkdir -p {folder}/missing\n"
    )
    assert os.listdir(folder) == []


def test_a_folder_that_takes_no_links_is_told(program: Path) -> None:
    done = install(program, "/proc/self")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "Error: /proc/self/codex-exec-server cannot be made: No such file or directory (os error 2)\n"
        "  What to do: choose a folder you may write to\n"
    )


def test_a_program_that_cannot_be_started_by_its_path_is_told(folder: Path) -> None:
    script = str(ROOT / "execserver" / "__main__.py")
    done = run(sys.executable, "-I", script, "install-aliases", str(folder))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"Error: {script} cannot be started by its path alone")
    assert "python3 build.py build" in done.stderr
    assert os.listdir(folder) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], f"the following required arguments were not provided:\n  <DIR>\n{USAGE}"),
        (["a", "b"], f"unexpected argument 'b' found\n{USAGE}"),
        (["--force", "a"], f"unexpected argument '--force' found\n{USAGE}"),
        (["-f"], f"unexpected argument '-f' found\n{USAGE}"),
    ],
)
def test_wrong_usage_exits_with_2(program: Path, arguments: list[str], text: str) -> None:
    done = install(program, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {text}{HINT}")


def test_a_folder_whose_name_begins_with_a_dash_stands_behind_two(program: Path, folder: Path) -> None:
    (folder / "-d").mkdir()
    assert install(program, "--", "-d", cwd=folder).returncode == 0
    assert sorted(os.listdir(folder / "-d")) == sorted(NAMES)


def test_help_is_the_programs_help(program: Path) -> None:
    done = install(program, "--help")
    assert (done.returncode, done.stdout, done.stderr) == (0, cli_help.HELP, "")
