"""`build.py demo`: it shows what it says, and leaves nothing behind, whatever happens."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.relay_process import program
from tests.support.server_process import base_environment, interrupts_not_ignored
from tests.support.source import ROOT
from tests.support.waiting import wait_until

STEPS = [
    *("make a token for the environment", "start a relay", "register this machine with it"),
    *("connect through it, end-to-end encrypted", "run a command", "write a file", "edit it"),
    *("see the change with a command", "end everything"),
]


def start(
    temporary: Path, words: list[str], module: str = "tools.demo", **variables: str
) -> subprocess.Popen[str]:
    env = {**base_environment(), "TMPDIR": str(temporary), **variables}
    with interrupts_not_ignored():
        return subprocess.Popen(
            [sys.executable, "-m", module, *words],
            cwd=ROOT,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def left_in(folder: Path) -> list[str]:
    """Return what is in a temporary folder but the program, which without a home is unpacked there."""
    return [name for name in os.listdir(folder) if name != f"execserver-{os.geteuid()}"]


def living(folder: Path) -> list[str]:
    """Return the command lines that name a folder, or run in it: Redis writes over its own."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            text = Path("/proc", pid, "cmdline").read_bytes()
            place = os.readlink(f"/proc/{pid}/cwd")
        except OSError:
            continue
        if str(folder).encode() in text or Path(place).is_relative_to(folder):
            found.append(text.replace(b"\0", b" ").decode())
    return found


def test_the_demo_plays_every_step_with_its_time(tmp_path: Path) -> None:
    demo = start(
        tmp_path, program(), CODEX_ACCESS_TOKEN="at-not-for-the-demo", HTTP_PROXY="http://127.0.0.1:9"
    )
    shown, errors = demo.communicate(timeout=55)
    assert (demo.returncode, errors) == (0, "")
    lines = shown.splitlines()
    assert [re.split(r" {2,}", line.strip())[0] for line in lines[:-1]] == STEPS
    for line in lines[:-1]:
        assert re.search(r" \d+ ms", line)
    assert re.search(r"colour = green$", lines[-3])
    assert re.fullmatch(r"OK in \d+ ms; nothing is left running", lines[-1])
    assert left_in(tmp_path) == []
    assert living(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_ends_what_it_has_started(tmp_path: Path, number: signal.Signals) -> None:
    demo = start(tmp_path, program())
    wait_until(lambda: any("--token-file" in words for words in living(tmp_path)), 30)
    demo.send_signal(number)
    _, errors = demo.communicate(timeout=30)
    assert demo.returncode == 130
    assert errors.endswith("interrupted; everything is ended\n")
    assert left_in(tmp_path) == []
    wait_until(lambda: living(tmp_path) == [])


def test_a_demo_that_fails_says_where(tmp_path: Path) -> None:
    demo = start(tmp_path, ["/bin/false"])
    shown, errors = demo.communicate(timeout=30)
    assert (demo.returncode, shown) == (1, "")
    assert errors.startswith("FAILED: make a token for the environment: ")
    assert left_in(tmp_path) == []
