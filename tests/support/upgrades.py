"""Upgrading a server from outside, as its user does, and files that stand for other programs."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest

from execserver.handover.records import STATE_VERSION
from tests.support.server_process import OURS, base_environment

WAIT_S = 50.0
VERB = [*OURS.argv, "upgrade"]
# What a program says that can take over: see execserver.handover.program.ANSWER.
AGREEMENT = f"execserver resumes {STATE_VERSION}"
RELAY_AGREEMENT = "execserver resumes 1001"
OTHER_UID = 54_321
_PR_SET_NO_NEW_PRIVS = 38


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


def refused(server: Running, *words: str, before: Callable[[], None] | None = None) -> str:
    """Ask in vain for an upgrade; return why."""
    done = upgrade(server, *words, before=before)
    assert (done.returncode, done.stdout) == (1, ""), done
    return done.stderr


def need_root() -> None:
    """Leave the test out for who cannot have files and processes of another user."""
    if os.geteuid():
        pytest.skip("only root can have files and processes of another user")


def no_new_privileges() -> None:
    """Be what a sandboxed process is; for `before`."""
    ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


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


def silent_program(path: Path) -> Path:
    """Write a program that says nothing."""
    path.write_text("#!/bin/true\n")
    path.chmod(0o755)
    return path


def planted_program(path: Path, *, agreement: str = AGREEMENT) -> Path:
    """Write a program that makes a file `ran` beside it once it takes over."""
    program(path, f"touch {path.parent}/ran", agreement=agreement)
    path.write_text(path.read_text().replace("exec ", f"touch {path.parent}/ran; exec ", 1))
    return path


def program_that_cannot_run(folder: Path, agreement: str = AGREEMENT) -> Path:
    """Write a program that agrees, and whose interpreter is gone then."""
    shell, file = folder / "sh", folder / "new"
    shell.write_text(f'#!/bin/sh\nrm {shell}\necho "{agreement}"\n')
    file.write_text(f"#!{shell}\n")
    for each in (shell, file):
        each.chmod(0o755)
    return file
