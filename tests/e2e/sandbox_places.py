"""Where sandboxed processes are tried: a workspace, and a server that runs as root or as an ordinary user."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.folders import plain_place
from tests.support.opened import open_program, open_python, open_search_path
from tests.support.peer import Json
from tests.support.running import Outcome, outcome, run, start
from tests.support.server_process import OURS, Flavour, ServerProcess
from tests.support.ws_peer import WsPeer

ORDINARY = 64321  # a user nobody else is


class Place:
    """A workspace, what lies beside it, and a connection to run things with."""

    def __init__(self, folder: Path, peer: WsPeer) -> None:
        self.folder = folder
        self.ws = folder / "ws"
        self.other = folder / "other"
        self.peer = peer
        self.server: ServerProcess | None = None  # where a test has one of its own
        self._count = 0

    def make(self, path: str, text: str = "") -> Path:
        """Make a file and the folders it needs; all belong to the server's user."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        self.own()
        return file

    def own(self) -> None:
        """Give everything to the server's user."""
        owner = os.stat(self.folder)
        for path in (self.folder, *self.folder.rglob("*")):
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)

    def begin(self, command: str | list[str], sandbox: Json, **members: Json) -> str:
        """Start a process in the workspace; return its id."""
        self._count += 1
        name = f"p{self._count}"
        start(self.peer, name, command, **{"cwd": f"file://{self.ws}", "sandbox": sandbox, **members})
        return name

    def run(self, command: str | list[str], sandbox: Json, **members: Json) -> Outcome:
        """Run a process in the workspace to its end."""
        return outcome(self.peer, self.begin(command, sandbox, **members))

    def denied(self) -> bool:
        """Tell whether the last process is said to have been denied something."""
        return bool(self.read()["sandboxDenied"])

    def read(self) -> Json:
        """Return what a read of the last process answers."""
        return self.peer.call("process/read", {"processId": f"p{self._count}"})

    def git(self, *words: str) -> str:
        """Run git in the workspace, outside any sandbox, as the server's user."""
        owner = os.stat(self.folder).st_uid
        done = subprocess.run(
            ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-c", "safe.directory=*", *words],
            cwd=self.ws,
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder), "GIT_CONFIG_NOSYSTEM": "1"},
            user=owner if os.geteuid() == 0 else None,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout


def as_ordinary_user(flavour: Flavour = OURS) -> Flavour:
    """Return a flavour that runs as a user without rights; only root can change users."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can start a server as another user")
    change = ("setpriv", f"--reuid={ORDINARY}", f"--regid={ORDINARY}", "--clear-groups", "--")
    program, *rest = flavour.argv
    env = flavour.env | {"HOME": "/nonexistent"}  # root's own may be closed to them, or anywhere
    if program == sys.executable:
        program, env = open_python(), {**env, "PYTHONPATH": open_search_path()}
    else:
        program = open_program(program)
    return Flavour(flavour.name, (*change, program, *rest), flavour.exit_on_terminate, env)


@contextmanager
def place_for(peer: WsPeer, owner: int) -> Iterator[Place]:
    """Make a workspace that belongs to a user."""
    folder = Path(tempfile.mkdtemp(prefix="sandboxed-", dir=plain_place()))
    try:
        (folder / "ws").mkdir()
        (folder / "other").mkdir()
        (folder / "ws" / "f").write_text("in")
        (folder / "other" / "f").write_text("out")
        os.chown(folder, owner, owner)
        place = Place(folder, peer)
        place.own()
        yield place
    finally:
        shutil.rmtree(folder, ignore_errors=True)


__all__ = ["ORDINARY", "Outcome", "Place", "as_ordinary_user", "place_for", "run"]
