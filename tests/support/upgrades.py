"""Upgrading a server from outside, as its user does, and files that stand for other programs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.server_process import OURS, ServerProcess, base_environment

WAIT_S = 50.0
VERB = [*OURS.argv, "upgrade"]
# What a program says that can take over: see execserver.handover.program.ANSWER.
AGREEMENT = "execserver resumes 2"


def upgrade(
    server: ServerProcess, *words: str, before: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    """Ask for an upgrade and return how it went; `before` runs in the child, ahead of its exec."""
    return subprocess.run(
        [*VERB, "--pid", str(server.pid), *words],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        env=base_environment(),
        preexec_fn=before,
    )


def upgraded(server: ServerProcess, *words: str) -> str:
    """Upgrade a server and return what is said about it."""
    done = upgrade(server, *words)
    assert done.returncode == 0, f"{done.stderr}; server: {server.errors()}"
    assert server.process.poll() is None
    return done.stdout


def program(path: Path, *lines: str, agrees: bool = True) -> Path:
    """Write a program that runs shell lines when it is asked, agrees or not, and else is our own."""
    answer = f'echo "{AGREEMENT}"' if agrees else "true"
    asked = "; ".join([*lines, answer])
    command = " ".join(f"'{word}'" for word in (sys.executable, "-m", "execserver"))
    path.write_text(
        f'#!/bin/sh\nif [ "$1" = --execserver-can-resume ]; then {asked}; exit; fi\nexec {command} "$@"\n'
    )
    path.chmod(0o755)
    return path
