"""Three shell tools as processes, for the same sessions: the reference's, and ours in both of its ways."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.mcp.replaying import SCRIPT, Machine, Replay, Server
from tests.reference.install import ShellTool
from tests.support.source import ROOT
from tests.support.stdio_peer import StdioPeer

OURS = (sys.executable, "-I", str(SCRIPT), "mcp")
# Where nothing may be traced ours falls back to the wrapper.
WITHOUT_PTRACE = (sys.executable, "-m", "tests.support.without_ptrace")


class Kind(NamedTuple):
    """One shell tool: its name, its command, its Bash, and what is sent as the sandbox helper."""

    name: str
    command: Sequence[str]
    bash: str
    helper: str

    def places(self, machine: Machine, workdir: Path) -> dict[str, str]:
        """Return what the recorded names stand for."""
        return {**machine.places(workdir), "<BASH>": self.bash, "<LINUX_SANDBOX>": self.helper}

    def play(self, session: str, machine: Machine, server: Server) -> list[tuple[Any, Any]]:
        """Play a session on a server of this kind; return what differs, as recorded and as seen."""
        places = self.places(machine, machine.workdir(session))
        return [(each.recorded, each.seen) for each in Replay(session, server.peer, places).play()]


def kinds(tool: ShellTool) -> dict[str, Kind]:
    """Return the three by name: `reference`, `notified` (any Bash) and `wrapped` (the patched one)."""
    bash, helper = str(tool.bash), str(tool.helper)
    return {
        "reference": Kind("reference", (str(tool.server),), bash, helper),
        "notified": Kind("notified", OURS, "/bin/bash", helper),
        "wrapped": Kind("wrapped", (*WITHOUT_PTRACE, *OURS), bash, helper),
    }


class KindOfServer(Server):
    """A server of one kind."""

    def __init__(self, kind: Kind, machine: Machine, flags: Sequence[str] = ()) -> None:
        self.process = subprocess.Popen(
            [*kind.command, *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=variables(kind, machine),
            cwd=machine.root / "server",
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.peer = StdioPeer(os.dup(self.process.stdin.fileno()), os.dup(self.process.stdout.fileno()))
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.stdin = self.process.stdout = None


def variables(kind: Kind, machine: Machine) -> Mapping[str, str]:
    """Return the environment of a server."""
    return {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "HOME": str(machine.root / "home"),
        "CODEX_HOME": str(machine.root / "codex"),
        "TMPDIR": str(machine.root / "tmp"),
        "SERVER_ONLY": "kept",
        "CODEX_BASH_PATH": kind.bash,
        "PYTHONPATH": str(ROOT),
    }
