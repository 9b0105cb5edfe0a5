"""The parts of the runner of virtual machines that need no emulator; and, in long runs, one machine."""

from __future__ import annotations

import gzip
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.machines import foreign, machine
from tests.machines.attacks import acts
from tests.machines.initramfs import Entry, file, folder, of_folder, pack, symlink
from tests.machines.machine import Machine, Outcome, can_run, run
from tests.machines.system import kernel, system
from tools.debian import DEBIAN
from tools.problems import Problem

CONSOLE = r"SeaBIOS\n@script@ one\r\nnoise @script@ two\n@status@ {status}\nlater\n"


def test_an_archive_holds_files_folders_and_symlinks(tmp_path: Path) -> None:
    if shutil.which("cpio") is None and shutil.which("busybox") is None:
        pytest.skip("there is no cpio here")
    cpio = ["cpio"] if shutil.which("cpio") else ["busybox", "cpio"]
    files = {"a/b/program": file(b"#!", 0o755), "link": symlink("a/b"), "empty": folder(0o700)}
    assert pack(files) == pack(dict(reversed(files.items())))
    subprocess.run(
        [*cpio, "-id"], input=gzip.decompress(pack(files)), cwd=tmp_path, check=True, capture_output=True
    )
    found = of_folder(tmp_path)
    assert found["a/b/program"] == Entry(0o100755, b"#!")
    assert found["link"] == symlink("a/b")
    assert found["empty"] == folder(0o700)
    assert set(found) == {"a", "a/b", *files}


def booted(script: str, limit_s: float = 20) -> Outcome:
    """Return what comes of a program that writes what a machine would."""
    return machine.follow(["sh", "-c", script], limit_s, lambda _: None)


@pytest.mark.parametrize(("status", "found"), [("0", 0), ("3", 3), ("", None)])
def test_the_lines_and_the_status_of_a_script_are_found_between_others(
    status: str, found: int | None
) -> None:
    outcome = booted(f"printf '{CONSOLE.format(status=status)}'; sleep 60")
    assert (outcome.lines, outcome.status) == (["one", "two"], found)
    assert "SeaBIOS" in outcome.console


def test_a_machine_that_hangs_is_killed_and_has_no_status() -> None:
    outcome = booted("echo @script@ one; exec sleep 60", limit_s=0.5)
    assert (outcome.lines, outcome.status) == (["one"], None)
    assert outcome.seconds < 30


def test_a_machine_that_ends_early_has_no_status() -> None:
    assert booted("echo panic").status is None


def test_without_an_emulator_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not can_run("aarch64")
    with pytest.raises(Problem, match="there is no qemu-system-aarch64 here"):
        run(Machine("aarch64", tmp_path / "none"), {}, "true")


def test_a_program_of_the_other_architecture_ends_as_it_says(tmp_path: Path) -> None:
    program = tmp_path / "foreign"
    program.write_bytes(foreign.program())
    program.chmod(0o755)
    try:
        status = subprocess.run([program], check=False).returncode
    except OSError as error:
        pytest.skip(f"this kernel does not execute one: {error}")
    assert status == foreign.STATUS


HARMLESS = ("write outside", "make a file in home", "write through a symlink", "read what is denied")


@pytest.mark.parametrize("name", HARMLESS)
def test_an_attack_gets_through_where_there_is_no_sandbox(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its being held would prove nothing.  Only those that stay in one folder are played here."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for place in ("inside", "outside", "denied"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "secret").write_text(place)
    assert acts(tmp_path)[name]()


@pytest.mark.long
def test_a_machine_runs_a_script() -> None:
    if not can_run("x86_64"):
        pytest.skip("there is no qemu-system-x86_64 here")
    try:
        image = kernel(DEBIAN, "bookworm", "linux-image-cloud-amd64", "x86_64")
        files = {**system("x86_64"), "root/said": file(b"hello\n")}
    except Problem as problem:
        pytest.skip(problem.what)
    outcome = run(Machine("x86_64", image), files, "cat said; id -u; exit 3", limit_s=600)
    assert (outcome.lines, outcome.status) == (["hello", "0"], 3)
