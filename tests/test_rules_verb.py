"""`execserver rules check`: the answers, the statuses, and what is printed where."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from execserver.dispatch import VERBS, choose
from execserver.verbs import rules
from execserver.verbs.rules import HELP

SOURCE = """
prefix_rule(["x", "no"], "forbidden", justification = "not that")
prefix_rule(["x"])
prefix_rule(["ask"], decision = "prompt")
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CODEX_HOME with rules, and a PATH with a program that is called x."""
    program = tmp_path / "bin" / "x"
    for folder in ("rules", "bin"):
        (tmp_path / folder).mkdir()
    program.touch(0o755)
    (tmp_path / "rules" / "a.rules").write_text(SOURCE)
    monkeypatch.setenv("CODEX_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Ran(NamedTuple):
    """What one call returned and printed."""

    status: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Calls the verb."""

    def call(*words: str) -> Ran:
        monkeypatch.setattr("sys.argv", ["execserver", *words])
        return Ran(rules.main(), *capfd.readouterr())

    return call


def test_it_is_a_verb() -> None:
    assert choose(["execserver", "rules", "check"]) == (VERBS["rules"], ["check"])


def test_the_rules_of_the_server_are_asked_and_the_deciding_one_is_marked(home: Path, run: Run) -> None:
    ran = run("check", "--", "x", "no", "a b")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out == (
        "x no 'a b'\n"
        "  is not run (forbidden)\n"
        f"  program: {home}/bin/x\n"
        "  rules that match:\n"
        f'  > forbidden {home}/rules/a.rules:2: prefix_rule(["x", "no"])\n'
        "              not that\n"
        f'    allow     {home}/rules/a.rules:3: prefix_rule(["x"])\n'
    )


@pytest.mark.parametrize(
    ("command", "outcome"),
    [
        ("x", "runs outside the sandbox (allow)"),
        ("./x", "runs outside the sandbox (allow)"),
        ("ask me", "asks, and then runs outside the sandbox (prompt)"),
        ("other", "runs inside the sandbox (no rule)"),
        ("rm -rf y", "asks, and then runs inside the sandbox (no rule, but it might be dangerous)"),
    ],
)
def test_every_outcome_is_told(home: Path, run: Run, command: str, outcome: str) -> None:
    ran = run("check", "--", *command.split())
    assert ran.status == 0
    assert ran.out.splitlines()[:2] == [command, f"  {outcome}"]


def test_the_program_is_the_one_that_would_be_started(home: Path, run: Run) -> None:
    assert f"program: {home}/y/x\n" in run("check", "--", "y/x").out
    assert "program: none of that name in PATH\n" in run("check", "--", "ask").out


def test_files_that_are_named_are_asked_instead(home: Path, run: Run) -> None:
    (home / "b").write_text('prefix_rule(["y"])')
    (home / "c").write_text('host_executable("y", ["/bin/y"])')
    assert "runs inside" in run("check", "b", "c", "--", "x").out
    assert "runs outside" in run("check", "b", "c", "--", "/bin/y").out
    assert "runs inside" in run("check", "b", "c", "--", "/sbin/y").out


def test_with_whole_paths_names_do_not_count(home: Path, run: Run) -> None:
    assert "runs inside" in run("check", "--preserve-program-paths", "--", "x").out


def test_programs_get_one_object(home: Path, run: Run) -> None:
    ran = run("check", "--json", "--", "x", "no")
    assert json.loads(ran.out) == {
        "command": ["x", "no"],
        "program": f"{home}/bin/x",
        "action": "deny",
        "decision": "forbidden",
        "rules": [
            {
                "where": f"{home}/rules/a.rules:2",
                "pattern": [["x"], ["no"]],
                "decision": "forbidden",
                "justification": "not that",
                "decides": True,
            },
            {
                "where": f"{home}/rules/a.rules:3",
                "pattern": [["x"]],
                "decision": "allow",
                "justification": None,
                "decides": False,
            },
        ],
    }
    ran = run("check", "--json", "--", "rm", "-f")
    assert json.loads(ran.out) == {
        "command": ["rm", "-f"],
        "program": None,
        "action": "ask-to-run",
        "decision": None,
        "rules": [],
    }


def test_broken_rules_are_told_as_the_server_tells_them(home: Path, run: Run) -> None:
    (home / "rules" / "b.rules").write_text("oh")
    ran = run("check", "--", "x")
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.startswith(
        f"Error: failed to parse rules file {home}/rules/b.rules: starlark error: error: "
    )


def test_a_word_that_is_no_text_is_printed(home: Path, run: Run) -> None:
    assert run("check", "--", os.fsdecode(b"\xff")).out.startswith("\\udcff\n")


def test_help_is_printed(run: Run) -> None:
    for words in (["--help"], ["check", "-h"], ["check", "--help", "--", "x"]):
        ran = run(*words)
        assert (ran.status, ran.out, ran.err) == (0, HELP, "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], HELP.splitlines()[0]),
        (["check"], "error: the following required arguments were not provided:"),
        (["check", "file"], "error: the following required arguments were not provided:"),
        (["check", "--"], "error: the following required arguments were not provided:"),
        (["check", "--bogus", "--", "x"], "error: unexpected argument '--bogus' found"),
        (["chek", "--", "x"], "error: unrecognized subcommand 'chek'"),
        (["--", "x"], "error: a subcommand is required"),
    ],
)
def test_wrong_usage_is_told(run: Run, words: list[str], message: str) -> None:
    ran = run(*words)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.splitlines()[0] == message
