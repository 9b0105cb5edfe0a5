"""`codex-linux-sandbox` started in a workspace of its own, without a server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.opened import open_source
from tests.support.sandboxes import managed, special

LINK_NAME = "codex-linux-sandbox"
READ_ONLY = managed(special("root", "read"))
WORKSPACE = managed(
    special("root", "read"),
    special("project_roots", "write"),
    *(special("project_roots", "read", name) for name in (".git", ".agents", ".codex")),
)
PATH = "/usr/bin:/bin"


class Box:
    """A workspace, and the command started there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ws = folder / "ws"
        self.ws.mkdir()
        (folder / "run").mkdir(0o700)
        self.env = {"PATH": PATH, "XDG_RUNTIME_DIR": str(folder / "run")}

    def words(self, *words: str, profile: object = READ_ONLY) -> list[str]:
        options = ["--sandbox-policy-cwd", str(self.ws), "--permission-profile", json.dumps(profile)]
        main = str(open_source() / "execserver" / "__main__.py")
        return [sys.executable, "-I", main, LINK_NAME, *options, *words]

    def start(self, *words: str, profile: object = READ_ONLY, **env: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.words(*words, profile=profile),
            cwd=self.ws,
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *words: str, profile: object = READ_ONLY, **env: str) -> tuple[int, str, str]:
        """Return exit status, stdout and stderr."""
        with self.start(*words, profile=profile, **env) as process:
            stdout, stderr = process.communicate(timeout=30)
        return process.returncode, stdout.decode(), stderr.decode()

    def shell(
        self, script: str, *options: str, profile: object = READ_ONLY, **env: str
    ) -> tuple[int, str, str]:
        return self.run(*options, "--", "sh", "-c", script, profile=profile, **env)

    def names(self) -> list[str]:
        return sorted(os.listdir(self.ws))
