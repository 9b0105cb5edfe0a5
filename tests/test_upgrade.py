"""The command line of `execserver upgrade`, and what a program says that is asked to take over."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from execserver.handover.records import STATE_VERSION
from tests.support.server_process import OURS, base_environment


def call(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*OURS.argv, *words], capture_output=True, text=True, timeout=50, check=False, env=base_environment()
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "b"], "unexpected argument 'b' found"),
        (["--pid", "x"], "invalid value 'x' for '--pid <PID>'"),
        (["--now"], "unexpected argument '--now' found"),
    ],
)
def test_wrong_usage_is_told(words: list[str], message: str) -> None:
    done = call("upgrade", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Usage: execserver upgrade [--pid <PID>] [FILE]" in done.stderr


def test_without_a_server_nothing_is_done() -> None:
    done = call("upgrade", "--pid", "1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: no server of yours with pid 1 can be upgraded here\n")


def asked(*words: str) -> tuple[int, str, str]:
    done = call("--execserver-can-resume", str(STATE_VERSION), *words)
    return done.returncode, done.stdout, done.stderr


def test_a_program_agrees_to_arguments_that_it_can_serve_by(tmp_path: Path) -> None:
    agreed = (0, f"execserver resumes {STATE_VERSION}\n", "")
    assert asked() == agreed
    assert asked("--listen", "ws://127.0.0.1:4567", "--metrics", "127.0.0.1:9464") == agreed
    assert asked("exec-server", "--listen", "ws://127.0.0.1:4567") == agreed
    assert asked("--remote", "https://relay.example", "--environment-id", "e") == agreed
    token = tmp_path / "token"
    words = ("--ws-auth", "capability-token", "--ws-token-file", str(token))
    status, _, why = asked(*words)
    assert (status, f"failed to read websocket auth secret {token}" in why) == (1, True)
    token.write_text("secret")
    assert asked(*words) == agreed


def test_a_program_does_not_agree_to_what_it_does_not_know_or_cannot_do() -> None:
    assert asked("--an-option-of-the-future")[0] == 2
    assert asked("doctor") == (1, "", "Error: these are no arguments of a server\n")
    assert asked("--listen", "stdio") == (1, "", "Error: a server on stdio cannot be upgraded in place\n")
    older = ("--remote", "https://relay.example", "--executor-id", "e")
    only = "Error: an executor of the older form (--executor-id) cannot be upgraded in place\n"
    assert asked(*older) == (1, "", only)
    status, _, why = asked("--remote", "https://relay.example", "--environment-id", "a/b")
    assert (status, "environment id `a/b` cannot be used" in why) == (1, True)
    assert call("--execserver-can-resume").returncode == 1
