"""The official MCP package as a client: greeting, tool, questions, errors, calls side by side."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.mcp.replaying import BASH, SCRIPT
from tests.support.proc import marked
from tests.support.waiting import wait_until

CLIENT = Path(__file__).with_name("official_client.py")
MARK = "EXECSERVER_TEST_MARK=official-client"


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("home")
    rules = home / ".codex" / "rules"
    rules.mkdir(parents=True)
    (rules / "test.rules").write_text('prefix_rule(["true"], decision="prompt")\n')
    name, _, value = MARK.partition("=")
    env = {"HOME": str(home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8", name: value}
    command = [sys.executable, str(CLIENT), sys.executable, "-I", str(SCRIPT), "mcp", "--bash", BASH]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, env=env, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_it_is_greeted(seen: dict[str, Any]) -> None:
    assert seen["version"] == "2025-06-18"
    assert seen["instructions"].startswith("This server provides a tool")
    assert (seen["tools"], seen["resources"], seen["prompts"]) == (["shell"], [], [])


def test_a_command_comes_back_with_its_output_and_exit_code(seen: dict[str, Any]) -> None:
    result = seen["plain"]
    assert set(result) == {"exit_code", "output", "duration", "timed_out", "is_error"}
    assert (result["exit_code"], result["output"], result["is_error"]) == (3, "hi\n", False)


def test_without_a_state_nothing_can_be_written(seen: dict[str, Any]) -> None:
    assert "sandbox denied exec error, exit code: 1" in seen["denied"]
    assert not Path("/etc/made-by-a-test").exists()


def test_its_answers_decide(seen: dict[str, Any]) -> None:
    assert seen["asked"] == [
        "Allow agent to run `/bin/true yes` in `/`?",
        "Allow agent to run `/bin/true no` in `/`?",
    ]
    # Of two pipes, either may be read first.
    assert sorted(seen["asked about"]["output"].splitlines()) == [
        "Execution denied: User declined execution",
        "ran",
        "refused",
    ]


def test_a_time_out_is_an_error(seen: dict[str, Any]) -> None:
    assert "command timed out" in seen["timed out"]


def test_calls_run_side_by_side(seen: dict[str, Any]) -> None:
    assert [seen[f"parallel {number}"]["output"] for number in range(5)] == [f"{each}\n" for each in range(5)]


def test_a_call_it_gives_up_is_ended_and_the_next_one_works(seen: dict[str, Any]) -> None:
    assert "cancelled" not in seen
    assert seen["cancelled has ended"]
    assert seen["after"]["output"] == "still here\n"


def test_nothing_is_left_when_it_has_gone(seen: dict[str, Any]) -> None:
    wait_until(lambda: not marked(MARK))
