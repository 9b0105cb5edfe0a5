"""Starts the built files with a cache, a home and a search path of the test's own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

LIMIT_S = 60.0
REQUEST = b'{"operation":"fs/canonicalize","params":{"path":"file:///./","sandbox":null}}'
REPLY = b'{"status":"ok","payload":{"operation":"fs/canonicalize","response":{"path":"file:///"}}}\n'

Done = subprocess.CompletedProcess[bytes]


class Box:
    """A user's surroundings: a home, a temporary folder, and nothing set but what the test adds."""

    def __init__(self, program: Path, folder: Path, home: Path | None = None) -> None:
        """Make a home and a temporary folder; `home` is one where the program has unpacked itself."""
        self.program = program
        self.home = home or folder / "home"
        self.temporary = folder / "temporary"
        for path in (self.home, self.temporary):
            path.mkdir(0o700, exist_ok=path is home)
        self.cache = self.home / ".cache" / "execserver"
        self.variables = {"PATH": os.environ["PATH"], "HOME": str(self.home), "TMPDIR": str(self.temporary)}

    @property
    def tree(self) -> Path:
        """The one tree in the cache."""
        (found,) = [path for path in self.cache.iterdir() if not path.name.startswith(".")]
        return found

    def start(
        self, words: Sequence[str | Path] = ("--version",), program: Path | None = None, /, **variables: str
    ) -> subprocess.Popen[bytes]:
        """Start the program, or another path that leads to it."""
        return subprocess.Popen(
            [str(program or self.program), *map(str, words)],
            env={**self.variables, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(
        self, words: Sequence[str | Path] = ("--version",), program: Path | None = None, /, **variables: str
    ) -> Done:
        """Start the program and wait for its end."""
        process = self.start(words, program, **variables)
        stdout, stderr = process.communicate(timeout=LIMIT_S)
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def run_in_new_mounts(self, script: str, *words: str | Path) -> Done:
        """Run a shell script in a mount namespace of its own; `$1` is the program, `$2...` are the words.

        Whoever runs it is user 0 there.
        """
        command = [*new_mounts(), "sh", "-euc", script, "sh", str(self.program), *map(str, words)]
        return subprocess.run(command, env=self.variables, capture_output=True, timeout=LIMIT_S, check=False)


def new_mounts() -> list[str]:
    """Return what starts a program in a mount namespace where it may mount; skip where none may be made."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("there is no `unshare` on this machine")
    command = [unshare, "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",))]
    probe = subprocess.run(
        [*command, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True, check=False
    )
    if probe.returncode:
        pytest.skip(f"no file system may be mounted here: {probe.stderr.strip()}")
    return command


def is_version(done: Done) -> bool:
    """Tell whether the program has answered `--version`, and with nothing else."""
    return (done.returncode, done.stderr) == (0, b"") and done.stdout.startswith(b"execserver ")
