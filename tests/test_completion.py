"""Completion as the shells really do it, and the texts about verbs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from execserver import cli_help
from execserver.dispatch import VERBS
from execserver.verbs import help as help_verb
from execserver.verbs import run
from tests.box.boxes import Screen
from tests.support.source import ROOT

MAIN = str(ROOT / "execserver" / "__main__.py")


def call(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", MAIN, *words],
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", **environ},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.fixture
def front(tmp_path: Path) -> Path:
    """A folder with the program, and a boxes file."""
    program = tmp_path / "execserver"
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -I '{MAIN}' \"$@\"\n")
    program.chmod(0o755)
    boxes = tmp_path / "boxes.toml"
    boxes.write_text('[boxes.dev]\nurl = "ssh:dev"\n[boxes.other]\nurl = "ssh:other"\n')
    boxes.chmod(0o600)
    tmp_path.chmod(0o700)
    return tmp_path


def complete(front: Path, shell: list[str], script: str) -> list[str]:
    """Return what a shell prints, as sorted words."""
    done = subprocess.run(
        [*shell, script],
        env={
            "PATH": f"{front}:{os.environ['PATH']}",
            "HOME": str(front),
            "EXECSERVER_BOXES": f"{front}/boxes.toml",
        },
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stderr == ""
    return sorted(done.stdout.split())


def bash(front: Path, *words: str) -> list[str]:
    line = " ".join(f"'{word}'" for word in words)
    script = (
        f"source <(execserver completion bash); COMP_WORDS=(execserver {line}); COMP_CWORD={len(words)}; "
    )
    return complete(front, ["bash", "--norc", "-c"], script + "_execserver; echo ${COMPREPLY[@]}")


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_verbs_options_and_boxes(front: Path) -> None:
    assert bash(front, "she") == ["shell"]
    assert bash(front, "run", "--c") == ["--cwd"]
    assert bash(front, "run", "") == ["dev", "other"]
    assert "true" in bash(front, "run", "dev", "--", "tru")
    assert bash(front, "help", "comp") == ["completion"]
    assert bash(front, "box", "") == ["add", "list", "remove"]
    assert bash(front, "box", "remove", "d") == ["dev"]
    assert bash(front, "completion", "z") == ["zsh"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_what_an_option_takes(front: Path) -> None:
    assert bash(front, "run", "dev", "--sandbox", "") == ["read-only", "workspace-write"]
    assert bash(front, "kill", "dev", "-s", "US") == ["USR1", "USR2"]
    assert bash(front, "cp", "--box", "") == ["dev", "other"]
    assert bash(front, "run", "--name", "") == []


# What is typed, and the words of the command line that Tab makes of it.
TYPED = (
    (b"cp a\t", "[cp] [a folder"),
    (b"shell --token-file dev\t", "[--token-file] [device]"),
    (b"edit ot\t", "[edit] [other:]"),
    (b"sync dev:\t", "[sync] [dev:]"),
    (b"run ot\t", "[run] [other]"),
    (b"box rem\tot\t", "[box] [remove] [other]"),
)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_paths_are_completed_as_elsewhere_and_boxes_with_a_colon(front: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    (front / "a folder").mkdir()
    (front / "device").touch()
    environ = {"PATH": f"{front}:{os.environ['PATH']}", "HOME": str(front), "TERM": "dumb"}
    environ["EXECSERVER_BOXES"] = f"{front}/boxes.toml"
    ready = {"bash": "bind 'set enable-bracketed-paste off'", "zsh": "autoload -U compinit; compinit -u -D"}
    words = {"bash": ["bash", "--norc", "-i"], "zsh": ["zsh", "-f", "-i"]}
    with Screen(words[shell], environ, front, 24, 400) as screen:
        line = f"{ready[shell]}; source <(execserver completion {shell}); echo re'ady'\r"
        screen.type(line.encode())
        screen.wait_for(b"ready\r\n")
        for typed, made in TYPED:
            screen.type(b"execserver " + typed + b"\x01printf '[%s] ' \x05; echo don'e'\r")
            assert made in screen.wait_for(b"done\r\n").decode()


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish")
def test_fish_completes_verbs_and_boxes(front: Path) -> None:
    script = (
        "execserver completion fish | source; complete -C 'execserver she'; complete -C 'execserver run d'"
    )
    assert complete(front, ["fish", "--no-config", "-c"], script) == ["dev", "shell"]
    script = "execserver completion fish | source; cd; complete -C 'execserver cp d'"
    assert complete(front, ["fish", "--no-config", "-c"], script) == ["dev:"]
    script = "execserver completion fish | source; complete -C 'execserver box '"
    assert complete(front, ["fish", "--no-config", "-c"], script) == ["add", "list", "remove"]
    values = "execserver completion fish | source; complete -C 'execserver run dev --sandbox '"
    assert complete(front, ["fish", "--no-config", "-c"], values) == ["read-only", "workspace-write"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh")
def test_zsh_takes_the_script(front: Path) -> None:
    script = (
        "autoload -U compinit; compinit -u -D; source <(execserver completion zsh); echo $_comps[execserver]"
    )
    assert complete(front, ["zsh", "-f", "-c"], script) == ["_execserver"]


def test_a_spoilt_boxes_file_completes_nothing_and_says_nothing(front: Path) -> None:
    (front / "boxes.toml").chmod(0o666)
    done = call("completion", "boxes", EXECSERVER_BOXES=str(front / "boxes.toml"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_another_shell_is_wrong_usage() -> None:
    assert call("completion", "tcsh").returncode == 2


def test_help_prints_the_text_about_each_verb() -> None:
    assert call("help").stdout == cli_help.HELP
    assert call("help", "run").stdout == run.HELP == call("run", "--help").stdout
    for verb in VERBS:
        assert verb in help_verb.text_about(verb)


def test_help_about_no_verb_names_those_there_are() -> None:
    done = call("help", "runn")
    assert done.returncode == 1
    assert "the verbs are attach, audit, box, " in done.stderr
