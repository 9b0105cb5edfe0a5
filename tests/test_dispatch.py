"""Which program a command line selects."""

from __future__ import annotations

import builtins
import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from execserver import cli_help, dispatch
from execserver.dispatch import choose
from execserver.mcp.interception import script_head
from execserver.runtime_paths import ExecServerRuntimePaths

SCRIPT = Path(dispatch.__file__).with_name("__main__.py")


CLI = "execserver.cli:main"
VERSION = "execserver.version:main"
HELPER = "execserver._helpers.codex_fs:main"
ZYGOTE = "execserver._helpers.zygote:main"
SHELL_TOOL = "execserver.mcp.main:main"
CODEX = "execserver.verbs.codex:main"
SERVE = "execserver.verbs.codex:serve"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["execserver"], (CLI, [])),
        (["any-name"], (CLI, [])),
        (["/usr/bin/codex-exec-server", "--listen", "stdio"], (CLI, ["--listen", "stdio"])),
        (["x", "codex-exec-server", "--listen", "stdio"], (CLI, ["--listen", "stdio"])),
        (["x", "--help"], (CLI, ["--help"])),
        (["x", "--version"], (VERSION, [])),
        (["codex-exec-server", "-V"], (VERSION, [])),
        (["x", "--version", "--bogus"], (CLI, ["--version", "--bogus"])),
        (["./codex-fs", "x"], (HELPER, ["x"])),
        (["x", "codex-fs", "y"], (HELPER, ["y"])),
        (["x", "--codex-run-as-fs-helper"], (HELPER, [])),
        (["x", "--execserver-zygote", "1024"], (ZYGOTE, ["1024"])),
        (["/bin/codex-exec-mcp-server", "--bash", "/b"], (SHELL_TOOL, ["--bash", "/b"])),
        (["x", "codex-exec-mcp-server", "-V"], (SHELL_TOOL, ["-V"])),
        (["x", "mcp", "--help"], (SHELL_TOOL, ["--help"])),
        (["x", "exec-server", "--listen", "stdio"], (SERVE, ["--listen", "stdio"])),
        (["x", "-c", "a=b", "exec-server", "--name", "n"], (SERVE, ["-c", "a=b", "--name", "n"])),
        (["x", "-ca=b", "--strict-config", "exec-server"], (SERVE, ["-ca=b", "--strict-config"])),
        (["x", "--enable=f", "--disable", "g", "exec-server"], (SERVE, ["--enable=f", "--disable", "g"])),
        (["x", "-c", "a=b", "exec-server", "forward"], (SERVE, ["forward", "-c", "a=b"])),
        (["x", "--listen", "stdio", "exec-server"], (CLI, ["--listen", "stdio", "exec-server"])),
        (["x", "-c", "exec-server"], (CLI, ["-c", "exec-server"])),
        (["/usr/bin/codex", "exec-server"], (CODEX, ["exec-server"])),
        (["codex", "doctor"], (CODEX, ["doctor"])),
        (["codex", "--version"], (CODEX, ["--version"])),
        (["codex", "--execserver-zygote", "1024"], (ZYGOTE, ["1024"])),
        (["codex", "--execserver-doctor", "--json"], ("execserver.verbs.doctor:main", ["--json"])),
        (["x", "self-test"], ("execserver.verbs.self_test:main", [])),
        (["x", "install-aliases", "/d"], ("execserver.verbs.aliases:main", ["/d"])),
        ([], (CLI, [])),
    ],
)
def test_the_name_or_the_first_argument_chooses(argv: list[str], expected: tuple[str, list[str]]) -> None:
    assert choose(argv) == expected


def test_only_the_first_argument_chooses() -> None:
    for argument in dispatch.ARGUMENTS:
        assert choose(["x", "--help", argument]) == (CLI, ["--help", argument])


def test_the_name_of_a_helper_outweighs_the_first_argument() -> None:
    for argument in dispatch.ARGUMENTS:
        assert choose(["/a/codex-fs", argument]) == (HELPER, [argument])


def test_a_copy_with_the_servers_other_name_starts_itself_as_zygote() -> None:
    assert choose(["/a/codex-exec-server", "--execserver-zygote", "5"]) == (
        "execserver._helpers.zygote:main",
        ["5"],
    )


@pytest.mark.parametrize(
    ("library", "told"),
    [
        (
            "libstdc++.so.6",
            "install it (`apt install libstdc++6`, `apk add libstdc++`), or use the single file",
        ),
        ("libffi.so.8", "install it, or use the single file execserver, which brings its own"),
    ],
)
def test_a_library_that_the_machine_lacks_is_told_with_its_cure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], library: str, told: str
) -> None:
    imported = builtins.__import__

    def load(name: str, *statement: Any) -> Any:
        if statement:  # not the entry
            return imported(name, *statement)
        raise ImportError(f"{library}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(sys, "argv", ["execserver"])
    monkeypatch.setattr("builtins.__import__", load)
    status = dispatch.main()
    monkeypatch.undo()
    printed = capsys.readouterr().err
    assert status == 1
    assert printed.startswith(f"Error: this machine has no {library}, which a package of execserver needs\n")
    assert told in printed


def test_any_other_failed_import_is_no_missing_library() -> None:
    assert dispatch.missing_library("No module named 'gevent'") is None


def test_every_entry_is_a_function_that_exists() -> None:
    for entry in {*dispatch.NAMES.values(), *dispatch.ARGUMENTS.values(), CODEX, SERVE}:
        module, _, function = entry.partition(":")
        assert callable(getattr(importlib.import_module(module), function))


ENDS = f"""
import atexit, sys, types
sys.path.insert(0, {str(SCRIPT.parents[1])!r})
from execserver import dispatch
atexit.register(print, "taken apart")
module, _, function = dispatch.choose(["execserver", *sys.argv[1:]])[0].partition(":")
sys.modules[module] = types.ModuleType(module)
setattr(sys.modules[module], function, lambda: print("said") or 3)
sys.argv[0] = "execserver"
sys.exit(dispatch.main())
"""


@pytest.mark.parametrize(
    ("word", "said"),
    [
        *((word, "said\n") for word in ("--listen=stdio", "exec-server", "relay", "--execserver-egress")),
        *((word, "said\n") for word in ("self-test", "box", "run", "edit", "find", "grep", "sync", "web")),
        *((word, "said\n") for word in ("codex-fs", "codex-linux-sandbox", "codex-execve-wrapper")),
        *((word, "said\n") for word in ("--execserver-search-lines", "--version")),
        ("rules", "said\ntaken apart\n"),  # without an event loop
    ],
)
def test_a_program_with_threads_or_that_answers_once_is_not_taken_apart(word: str, said: str) -> None:
    """A thread that comes back meanwhile would find freed what it uses; what is freed takes time."""
    command = [sys.executable, "-I", "-c", ENDS, word]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (3, said)


def test_the_server_is_not_taken_apart_under_the_name_of_the_codex_cli_either() -> None:
    code = ENDS.replace('["execserver", *sys.argv[1:]]', '["codex", *sys.argv[1:]]')
    code = code.replace('sys.argv[0] = "execserver"', 'sys.argv[0] = "codex"')
    command = [sys.executable, "-I", "-c", code, "exec-server"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (3, "said\n")


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
@pytest.mark.parametrize("word", ["--help", "relay --help", "mcp --help"])
def test_a_program_that_began_without_an_output_ends_with_its_status(word: str, closed: str) -> None:
    command = f'"$0" -I "$1" {word} {closed}'
    words = ["/bin/sh", "-c", command, sys.executable, str(SCRIPT)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_help_names_every_verb() -> None:
    for verb in dispatch.VERBS:
        assert f"\n       execserver {verb}" in cli_help.HELP
        assert f"\n  {verb} " in cli_help.HELP


def test_a_symlink_selects_by_its_name(tmp_path: Path) -> None:
    launcher = tmp_path / "launcher"
    launcher.write_text(
        f"{script_head(sys.executable)}import sys\nsys.path.insert(0, {str(SCRIPT.parents[1])!r})\n"
        "from execserver.dispatch import main\nsys.exit(main())\n"
    )
    launcher.chmod(0o755)
    alias = tmp_path / "codex-execve-wrapper"
    alias.symlink_to(launcher)
    done = subprocess.run([alias], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Usage: codex-execve-wrapper <FILE> [ARGV]..." in done.stderr


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
    words = ("/tree/loader", "/tree/python3", "/tree/boot.pyc", "-1", "/opt/x", "execserver")
    monkeypatch.setattr(sys, "frozen", words, raising=False)
    paths = ExecServerRuntimePaths.detect()
    assert paths.codex_self_exe == "/opt/x"
    assert paths.zygote_command() == [*map(os.fsencode, words), b"--execserver-zygote"]


def test_the_own_path_is_found_through_symlinks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = tmp_path / "execserver"
    real.touch()
    (tmp_path / "alias").symlink_to(real)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "alias")])
    paths = ExecServerRuntimePaths.detect()
    assert (paths.codex_self_exe, paths.codex_linux_sandbox_exe) == (str(real), None)


SHOW_ENVIRONMENT = f"""
import os, sys, types
sys.path.insert(0, {str(SCRIPT.parents[1])!r})
from execserver import dispatch
shown = sys.modules["shown"] = types.ModuleType("shown")
shown.main = lambda: print(sorted(os.environ.items()))
dispatch.choose = lambda argv: ("shown:main", [])
dispatch.main()
"""


@pytest.mark.parametrize(
    "given",
    [{}, {"LC_CTYPE": "C"}, {"LC_CTYPE": "POSIX", "LANG": "C"}, {"LC_CTYPE": "C.UTF-8"}, {"LC_ALL": "C"}],
)
def test_the_environment_stays_as_it_was_given(given: dict[str, str]) -> None:
    """The interpreter sets LC_CTYPE for itself where no locale is set; what we start must not see it."""
    command = [sys.executable, "-I", "-S", "-c", SHOW_ENVIRONMENT]
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == f"{sorted(given.items())}\n"


INTERRUPTED = f"""
import sys, types
sys.path.insert(0, {str(SCRIPT.parents[1])!r})
from execserver import dispatch
def interrupt():
    print("so far")
    raise KeyboardInterrupt
sys.modules["interrupted"] = types.ModuleType("interrupted")
sys.modules["interrupted"].main = interrupt
dispatch.choose = lambda argv: ("interrupted:main", [])
dispatch.main()
"""


def test_an_interrupt_that_nothing_else_takes_ends_the_program_without_a_traceback() -> None:
    command = [sys.executable, "-I", "-S", "-c", INTERRUPTED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "so far\n", "")
