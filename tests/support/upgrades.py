"""Upgrading a server from outside, as its user does, and files that stand for other programs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tests.support.server_process import OURS, base_environment

WAIT_S = 50.0
VERB = [*OURS.argv, "upgrade"]
# What a program says that can take over: see execserver.handover.program.ANSWER.
AGREEMENT = "execserver resumes 3"
RELAY_AGREEMENT = "execserver resumes 1001"


class Running(Protocol):
    """A server or a relay in a process of its own."""

    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        """Its process id."""

    def errors(self) -> str:
        """Return what it has written to stderr so far."""


def upgrade(
    server: Running, *words: str, before: Callable[[], None] | None = None
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


def upgraded(server: Running, *words: str) -> str:
    """Upgrade a server and return what is said about it."""
    done = upgrade(server, *words)
    assert done.returncode == 0, f"{done.stderr}; server: {server.errors()}"
    assert server.process.poll() is None
    return done.stdout


def program(path: Path, *lines: str, agrees: bool = True, agreement: str = AGREEMENT) -> Path:
    """Write a program that runs shell lines when it is asked, agrees or not, and else is our own."""
    answer = f'echo "{agreement}"' if agrees else "true"
    asked = "; ".join([*lines, answer])
    command = " ".join(f"'{word}'" for word in (sys.executable, "-m", "execserver"))
    path.write_text(
        f'#!/bin/sh\nif [ "$1" = --execserver-can-resume ]; then {asked}; exit; fi\nexec {command} "$@"\n'
    )
    path.chmod(0o755)
    return path
