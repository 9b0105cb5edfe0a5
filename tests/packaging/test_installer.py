"""`install.sh`: which file it takes, what it refuses, and what it leaves; with the shells that boxes have."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.accounts import own_cache
from tests.support.one_file import is_version
from tests.support.source import ROOT
from tools.freeze import installer

MACHINE = os.uname().machine
SHELLS = {"dash": ["dash"], "busybox": ["busybox", "sh"], "bash": ["bash", "--posix"]}
MOST_LINES = 60


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> list[str]:
    """The words that start one of the shells."""
    words = SHELLS[request.param]
    if shutil.which(words[0]) is None:
        pytest.skip(f"there is no {words[0]} here")
    return words


@pytest.fixture
def released(dist: Path, tmp_path: Path) -> Path:
    """A folder with the script and the file for this machine."""
    folder = tmp_path / "released files"
    folder.mkdir()
    (folder / f"execserver-{MACHINE}").symlink_to(dist / "execserver")
    installer.write(ROOT, [folder / f"execserver-{MACHINE}"])
    return folder


def install(shell: list[str], released: Path, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the script."""
    command = [*shell, str(released / installer.SCRIPT), *words]
    variables = {"PATH": os.environ["PATH"], "HOME": str(home), **own_cache()}
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)


def test_it_is_short_and_runs_by_itself(released: Path) -> None:
    script = released / installer.SCRIPT
    assert os.access(script, os.X_OK)
    assert len(script.read_text().splitlines()) <= MOST_LINES
    assert "@" not in script.read_text().replace('"$@"', "")


def test_it_places_the_file_and_its_names_and_says_how_to_remove_them(
    shell: list[str], released: Path, tmp_path: Path
) -> None:
    target = tmp_path / "my programs"
    for _ in range(2):  # the second time over the first
        done = install(shell, released, tmp_path, str(target))
        assert (done.returncode, done.stderr) == (0, "")
    assert is_version_of(target / "execserver", tmp_path)
    assert (target / "codex-linux-sandbox").resolve() == target / "execserver"
    (removal,) = [line for line in done.stdout.splitlines() if line.startswith("to remove it: ")]
    subprocess.run(["sh", "-c", removal.removeprefix("to remove it: ")], check=True)
    assert list(target.iterdir()) == []


def is_version_of(program: Path, home: Path) -> bool:
    """Tell whether a program says its version."""
    variables = {"PATH": os.environ["PATH"], "HOME": str(home), **own_cache()}
    return is_version(subprocess.run([program, "--version"], env=variables, capture_output=True, check=False))


def test_a_file_that_is_damaged_replaces_nothing(shell: list[str], released: Path, tmp_path: Path) -> None:
    file = released / f"execserver-{MACHINE}"
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(data[:-1] + b"?")
    target = tmp_path / "target"
    target.mkdir()
    (target / "execserver").write_text("the one before")
    done = install(shell, released, tmp_path, str(target))
    assert done.returncode == 1
    assert f"execserver-{MACHINE} is damaged or another version" in done.stderr
    assert [(path.name, path.read_text()) for path in target.iterdir()] == [("execserver", "the one before")]


def test_a_kind_of_processor_without_a_file_is_refused(
    shell: list[str], released: Path, tmp_path: Path
) -> None:
    script = released / installer.SCRIPT
    script.write_text(script.read_text().replace(f"execserver-{MACHINE}'", "execserver-riscv64'"))
    done = install(shell, released, tmp_path, str(tmp_path / "target"))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"there is no file for this kind of processor ({MACHINE})" in done.stderr


def test_without_the_file_it_asks_where_to_get_it(shell: list[str], released: Path, tmp_path: Path) -> None:
    (released / f"execserver-{MACHINE}").unlink()
    done = install(shell, released, tmp_path, str(tmp_path / "target"))
    assert done.returncode == 1
    assert "name in EXECSERVER_URL where it can be got from" in done.stderr
