"""What a server does about noticing programs: nothing, a link for the wrapper, or a refusal of every call."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from execserver.mcp import interception
from execserver.mcp.interception import WRAPPER_NAME, find_interception, script_head
from execserver.runtime_paths import ExecServerRuntimePaths
from execserver.zygote.supervision.probe import Choice
from execserver.zygote.supervision.records import NOTIFY, WRAPPER
from tests.support.source import ROOT

SCRIPT = str(ROOT / "execserver" / "__main__.py")


def choosing(monkeypatch: pytest.MonkeyPatch, choice: Choice) -> None:
    monkeypatch.setattr(interception, "choose", lambda _: choice)


def test_where_the_kernel_tells_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    choosing(monkeypatch, Choice(NOTIFY))
    found = find_interception("/bin/bash", None, ExecServerRuntimePaths("/no/execserver"))
    assert (found.way, found.wrapper, found.reason) == (NOTIFY, "", "")


def test_without_a_way_the_reason_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    choosing(monkeypatch, Choice(None, "no way"))
    found = find_interception("/bin/bash", "/w", ExecServerRuntimePaths("/no/execserver"))
    assert found.way == "no way"


def test_a_wrapper_that_is_named_or_lies_beside_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choosing(monkeypatch, Choice(WRAPPER, "why"))
    (tmp_path / WRAPPER_NAME).touch(0o755)
    paths = ExecServerRuntimePaths(str(tmp_path / "execserver"))
    assert find_interception("/bin/bash", "/w", paths).wrapper == "/w"
    found = find_interception("/bin/bash", None, paths)
    assert (found.way, found.wrapper, found.reason) == (WRAPPER, str(tmp_path / WRAPPER_NAME), "why")
    found.close()
    assert (tmp_path / WRAPPER_NAME).exists()


def test_a_link_is_made_for_the_time_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choosing(monkeypatch, Choice(WRAPPER))
    program = tmp_path / "execserver"
    program.touch(0o755)
    found = find_interception("/bin/bash", None, ExecServerRuntimePaths(str(program)))
    assert Path(found.wrapper).name == WRAPPER_NAME
    assert Path(found.wrapper).readlink() == program
    found.close()
    assert not Path(found.wrapper).parent.exists()
    found.close()


def test_what_is_made_for_the_source_is_the_wrapper(monkeypatch: pytest.MonkeyPatch) -> None:
    choosing(monkeypatch, Choice(WRAPPER))
    found = find_interception("/bin/bash", None, ExecServerRuntimePaths(SCRIPT))
    done = subprocess.run(
        [found.wrapper, "/bin/true", "true"], env={}, capture_output=True, text=True, timeout=20, check=False
    )
    found.close()
    assert (done.returncode, done.stderr) == (1, "Error: environment variable not found\n")


@pytest.mark.parametrize("folder", ["plain", "hömé dir", "it's one", "long" * 50])
def test_a_script_may_be_run_by_an_interpreter_anywhere(tmp_path: Path, folder: str) -> None:
    python = tmp_path / folder / "python3"
    python.parent.mkdir()
    python.symlink_to(os.path.realpath(sys.executable))
    script = tmp_path / "script"
    script.write_text(script_head(str(python)) + "import sys\nprint(sys.argv, sys.flags.isolated)\n")
    script.chmod(0o755)
    done = subprocess.run([script, "a b", "*"], capture_output=True, text=True, timeout=20, check=False)
    assert (done.stdout, done.stderr) == (f"{[str(script), 'a b', '*']} 1\n", "")


def test_a_link_that_cannot_be_made_refuses_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise OSError(30, os.strerror(30))

    choosing(monkeypatch, Choice(WRAPPER, "why"))
    monkeypatch.setattr(interception, "_new_folder", refuse)
    found = find_interception("/bin/bash", None, ExecServerRuntimePaths(SCRIPT))
    assert found.way == "why; and no link for the wrapper can be made: Read-only file system"
