"""Which program a command line selects."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from execserver import dispatch
from execserver.dispatch import NotInThisBuild, choose
from execserver.runtime_paths import ExecServerRuntimePaths

SCRIPT = Path(dispatch.__file__).with_name("__main__.py")


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["execserver"], ("execserver.cli:main", [])),
        (["/usr/bin/codex-exec-server", "--listen", "stdio"], ("execserver.cli:main", ["--listen", "stdio"])),
        (["x", "--help"], ("execserver.cli:main", ["--help"])),
        (["x", "--execserver-zygote", "1024"], ("helpers.zygote:main", ["1024"])),
        (["x", "--help", "--execserver-zygote"], ("execserver.cli:main", ["--help", "--execserver-zygote"])),
        ([], ("execserver.cli:main", [])),
    ],
)
def test_the_name_or_the_hidden_argument_chooses(argv: list[str], expected: tuple[str, list[str]]) -> None:
    assert choose(argv) == expected


@pytest.mark.parametrize("name", [name for name, entry in dispatch.NAMES.items() if entry is None])
def test_a_name_that_is_not_built_yet_says_so(name: str) -> None:
    with pytest.raises(NotInThisBuild, match=f"{name} is not in this build"):
        choose([f"/some/where/{name}", "--help"])


def test_a_symlink_selects_by_its_name(tmp_path: Path) -> None:
    launcher = tmp_path / "launcher"
    launcher.write_text(
        f"#!{sys.executable} -IS\nimport sys\nsys.path.insert(0, {str(SCRIPT.parents[1])!r})\n"
        "from execserver.dispatch import main\nsys.exit(main())\n"
    )
    launcher.chmod(0o755)
    alias = tmp_path / "codex-execve-wrapper"
    alias.symlink_to(launcher)
    done = subprocess.run([alias], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "Error: codex-execve-wrapper is not in this build of execserver\n"


def test_nothing_but_os_and_sys_is_imported_before_the_choice() -> None:
    code = (
        f"import sys, os; sys.path.insert(0, {str(SCRIPT.parents[1])!r}); before = set(sys.modules);"
        "import execserver.dispatch as d; d.choose(['codex-exec-server']);"
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.strip() == "['__future__', 'execserver', 'execserver.dispatch']"


def test_the_zygote_command_names_files_that_exist() -> None:
    command = [word.decode() for word in ExecServerRuntimePaths("/unused").zygote_command()]
    assert command[0] == sys.executable
    assert command[-1] == "--execserver-zygote"
    assert Path(command[-2]).samefile(SCRIPT)


def test_a_frozen_program_starts_itself_as_zygote(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert ExecServerRuntimePaths("/opt/x").zygote_command() == [b"/opt/x", b"--execserver-zygote"]


def test_the_own_path_is_found_through_symlinks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = tmp_path / "execserver"
    real.touch()
    (tmp_path / "alias").symlink_to(real)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "alias")])
    paths = ExecServerRuntimePaths.detect()
    assert (paths.codex_self_exe, paths.codex_linux_sandbox_exe) == (str(real), None)
