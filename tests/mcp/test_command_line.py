"""The command line of the shell tool's server: options, which Bash is taken, texts and exit statuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from execserver import __version__
from execserver.leaving import Leave
from execserver.mcp import command_line
from execserver.mcp.command_line import HELP, Options, parse

BASH = {"CODEX_BASH_PATH": "/opt/bash"}


def leaving(*argv: str, **environ: str) -> Leave:
    with pytest.raises(Leave) as caught:
        parse(list(argv), environ)
    return caught.value


def test_the_options_are_read() -> None:
    assert parse(["--bash", "/b", "--execve=/w", "--preserve-program-paths"], {}) == Options("/b", "/w", True)
    assert parse([], BASH) == Options("/opt/bash", None, False)
    assert parse(["--bash", "relative"], BASH) == Options("relative")


def program(folder: Path) -> Path:
    folder.mkdir()
    file = folder / "bash"
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    return file


def test_without_a_bash_the_first_one_in_the_path_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = program(tmp_path / "1"), program(tmp_path / "2")
    path = f"relative::{tmp_path / 'none'}:{first.parent}:{second.parent}"
    assert parse([], {"PATH": path}).bash == str(first)
    assert parse([], {"PATH": path, "CODEX_BASH_PATH": ""}).bash == str(first)
    first.chmod(0o644)
    monkeypatch.setattr(command_line, "_FOLDERS", (str(second.parent),))
    assert parse([], {"PATH": str(first.parent)}).bash == str(second)


def test_without_any_bash_the_cure_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_line, "_FOLDERS", (str(tmp_path),))
    leave = leaving(PATH=str(tmp_path))
    assert (leave.status, leave.stdout) == (1, "")
    assert leave.stderr.startswith("Error: no Bash found")
    assert "--bash or CODEX_BASH_PATH" in leave.stderr


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_is_printed(flag: str) -> None:
    leave = leaving("--bash", "/b", flag, "--bogus")
    assert (leave.status, leave.stdout, leave.stderr) == (0, HELP, "")


@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_the_version_is_printed_under_the_name_that_launchers_know(flag: str) -> None:
    leave = leaving(flag)
    assert (leave.status, leave.stdout) == (0, f"codex-exec-server {__version__}\n")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--bogus",), "unexpected argument '--bogus' found"),
        (("operand",), "unexpected argument 'operand' found"),
        (("--bash",), "a value is required for '--bash <PATH>' but none was supplied"),
        (("--bash=",), "a value is required for '--bash <PATH>' but none was supplied"),
        (("--bash", "a", "--bash", "b"), "the argument '--bash <PATH>' cannot be used multiple times"),
        (("--preserve-program-paths=1",), "unexpected value '1' for '--preserve-program-paths' found"),
    ],
)
def test_a_mistake_is_told_and_ends_with_2(argv: tuple[str, ...], message: str) -> None:
    leave = leaving(*argv, **BASH)
    assert (leave.status, leave.stdout) == (2, "")
    assert leave.stderr.startswith(f"error: {message}")
    assert leave.stderr.endswith("For more information, try '--help'.\n")
