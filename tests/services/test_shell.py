"""Which shell is reported for which passwd entry; the rows are what the reference server answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from execserver.services.machine.shell import detect_shell, login_shell


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with programs named like shells."""
    for name in ("zsh", "bash", "pwsh", "fish", "sh", "zsh.exe"):
        (tmp_path / name).touch(mode=0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("login", "name", "program"),
    [
        ("{F}/zsh", "zsh", "zsh"),
        ("{F}/pwsh", "powershell", "pwsh"),
        ("{F}/zsh.exe", "zsh", "zsh.exe"),
        ("{F}/fish", "bash", "bash"),
        ("/nowhere/zsh", "zsh", "zsh"),
        ("/nowhere/sh", "sh", "sh"),
        ("/nowhere/powershell", "powershell", "pwsh"),
        ("/nowhere/cmd", "bash", "bash"),
        ("/usr/sbin/nologin", "bash", "bash"),
        ("{F}/bash --login", "bash", "bash"),
        ("bash", "bash", "bash"),
        ("", "bash", "bash"),
        (None, "bash", "bash"),
    ],
)
def test_shell_of_a_passwd_entry(folder: Path, login: str | None, name: str, program: str) -> None:
    shell = detect_shell(None if login is None else login.replace("{F}", str(folder)), f"/nowhere:{folder}")
    assert (shell.name, shell.path) == (name, f"{folder}/{program}")


def test_a_folder_is_no_shell(folder: Path) -> None:
    (folder / "deeper" / "sh").mkdir(parents=True)
    assert detect_shell(f"{folder}/deeper/sh", str(folder)).path == f"{folder}/sh"


def test_what_cannot_be_executed_is_not_found_in_path(tmp_path: Path, folder: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "zsh").touch(mode=0o644)
    assert detect_shell("/nowhere/zsh", f"{plain}:{folder}").path == f"{folder}/zsh"


def test_relative_folders_of_path_are_passed_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert not detect_shell("/nowhere/pwsh", ".::").path.startswith((".", str(folder)))


def test_without_path_the_usual_places_are_tried() -> None:
    shell = detect_shell("/nowhere/sh", "")
    assert (shell.name, shell.path) == ("sh", "/bin/sh")


def test_a_user_without_passwd_entry_has_no_login_shell() -> None:
    assert login_shell(2**31 - 7) is None
