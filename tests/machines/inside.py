"""What is tried inside a machine, as its root and as its ordinary user: a line for each check.

    python3 inside.py PROGRAM CHECK...

Runs on the standard library of the distribution, with parts of the tests beside it.  A line is `ok NAME`,
`no NAME: REASON` or `left out NAME: REASON`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.machines import foreign
from tests.support.stdio_peer import StdioPeer

TRANSCRIPTS = ("01-lifecycle", "06-fs")
SESSIONS = ("initialize", "allowed-runs-outside", "exit-codes", "escalated-exit-code", "prompt-accept")
LIMIT_S = 240.0  # for one program; emulated machines are slow
_UNWATCHED = "no program can be watched here"  # by kernels before 5.9
_ATTACKS = Path(__file__).with_name("attacks.py")


class LeftOut(Exception):
    """A check that says nothing here; the text says why."""


class Failed(Exception):
    """A check that found something; the text says what."""


def self_test(program: str) -> None:
    """The program's own look at the machine."""
    done = run([program, "self-test"])
    if done.returncode:
        raise Failed(last_line(done.stdout + done.stderr))


def replay(program: str) -> None:
    """Recorded traffic of the contract."""
    os.environ["EXECSERVER_PROGRAM"] = program
    from tests.support.server_process import OURS
    from tests.support.stage import play

    os.umask(0o022)
    for name in TRANSCRIPTS:
        with tempfile.TemporaryDirectory() as folder:
            failures = play(f"{name}.0.142.0", Path(folder), OURS)
        if failures:
            raise Failed(f"{name}: {failures[0]}")


def attacks(program: str) -> None:
    """A sandboxed command that tries what it must not be able to do."""
    with tempfile.TemporaryDirectory(dir=Path.home()) as folder:
        ground = Ground(Path(folder))
        done = ground.sandboxed(program, [sys.executable, "-I", "-B", str(_ATTACKS), *ground.words()])
        if done.returncode == 1 and "sandbox" in done.stderr.lower() and not done.stdout:
            raise LeftOut(f"refused: {last_line(done.stderr)}")
        if done.returncode or not done.stdout.strip():
            raise Failed(last_line(done.stderr))
        got_through = [line for line in done.stdout.splitlines() if not line.endswith(": held")]
        if got_through or not ground.is_unharmed():
            raise Failed("; ".join(got_through) or "a file outside was changed")


def architectures(program: str) -> None:
    """Programs of the processor's other architecture, whose calls no filter knows."""
    with tempfile.TemporaryDirectory(dir=Path.home()) as folder:
        ground, made = Ground(Path(folder)), Path(folder) / "foreign"
        made.write_bytes(foreign.program())
        made.chmod(0o755)
        try:
            outside = subprocess.run([made], check=False).returncode
        except OSError as error:
            raise LeftOut(f"the kernel does not execute one ({error.strerror})") from None
        if outside != foreign.STATUS:
            raise LeftOut(f"one ends with {outside} outside of sandboxes")
        done = ground.sandboxed(program, [str(made)])
        if done.returncode == 1 and "sandbox" in done.stderr.lower():
            raise LeftOut(f"refused: {last_line(done.stderr)}")
        if done.returncode != 128 + foreign.SIGSYS:
            raise Failed(f"one ended with {done.returncode}, not by SIGSYS")


def shell_tool(program: str) -> None:
    """Recorded sessions of the shell tool."""
    from tests.mcp.replaying import RULES, Machine, Replay

    with tempfile.TemporaryDirectory(dir=Path.home()) as folder:
        machine = Machine(Path(folder))
        machine.make({"default.rules": RULES})
        environment = {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "SERVER_ONLY": "kept",
            "CODEX_BASH_PATH": "/bin/bash",
            "HOME": f"{folder}/home",
            "CODEX_HOME": f"{folder}/codex",
            "TMPDIR": f"{folder}/tmp",
            # It is unpacked already; once more, on such a machine, takes longer than a start may.
            "EXECSERVER_CACHE_DIR": str(Path.home() / ".cache" / "execserver"),
        }
        for name in SESSIONS:
            with subprocess.Popen(
                [program, "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
            ) as server:
                assert server.stdin is not None
                assert server.stdout is not None
                peer = StdioPeer(os.dup(server.stdin.fileno()), os.dup(server.stdout.fileno()))
                server.stdin.close()
                try:
                    found = Replay(name, peer, machine.places(machine.workdir(name))).play()
                finally:
                    peer.close_input()
                    server.terminate()
                    server.wait(LIMIT_S)
                    peer.close()
            if found and _UNWATCHED in str(found[0].seen):
                raise LeftOut(f"refused: {_UNWATCHED}")
            if found:
                raise Failed(f"{name}: {found[0].seen}")


class Ground(NamedTuple):
    """A folder with what a sandboxed command may write, and what it must not read or write."""

    root: Path

    def words(self) -> list[str]:
        """Make the files; return what the attacks are told."""
        for name in ("inside", "denied", "outside"):
            (self.root / name).mkdir(exist_ok=True)
        for name in ("denied", "outside"):
            (self.root / name / "secret").write_text(name)
        return [str(self.root)]

    def sandboxed(self, program: str, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a command that may write `inside` and read all but `denied`, without network."""
        self.words()
        entries = [
            {"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"},
            {"path": {"type": "path", "path": str(self.root / "inside")}, "access": "write"},
            {"path": {"type": "path", "path": str(self.root / "denied")}, "access": "none"},
        ]
        profile = {
            "type": "managed",
            "network": "restricted",
            "file_system": {"type": "restricted", "entries": entries},
        }
        inside = str(self.root / "inside")
        alias = self.root / "codex-linux-sandbox"
        if not alias.is_symlink():
            alias.symlink_to(program)
        words = [
            str(alias),
            "--sandbox-policy-cwd",
            inside,
            "--permission-profile",
            json.dumps(profile),
            "--",
        ]
        return run([*words, *command], inside)

    def is_unharmed(self) -> bool:
        """Tell whether everything outside is as it was."""
        names = sorted(path.name for path in (self.root / "outside").iterdir())
        return names == ["secret"] and (self.root / "outside" / "secret").read_text() == "outside"


CHECKS: dict[str, Callable[[str], None]] = {
    "self-test": self_test,
    "replay": replay,
    "attacks": attacks,
    "architectures": architectures,
    "shell tool": shell_tool,
}


def run(command: list[str], folder: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    return subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def last_line(text: str) -> str:
    """Return the last line that says something."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "nothing was said"


def report(name: str, program: str) -> str:
    """Make one check; return its line."""
    started = time.monotonic()
    try:
        CHECKS[name](program)
    except LeftOut as reason:
        return f"left out {name}: {reason}"
    except Exception as error:  # whatever it is, the other checks go on
        return f"no {name}: {' '.join(str(error).split())[:300] or type(error).__name__}"
    return f"ok {name}: {time.monotonic() - started:.0f} s"


def say(line: str) -> None:
    """Write a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(words: list[str]) -> int:
    """Make the checks that are named, or all."""
    program, *names = words
    say(f"pages {os.sysconf('SC_PAGESIZE')}")
    for name in names or CHECKS:
        say(report(name, program))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
