"""What attacks are played on: a workspace with protected parts, and neighbours that must come to no harm."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from execserver.sandbox.plan import (
    FILTER_RESTRICTED,
    HIDDEN_DIRECTORY,
    HIDDEN_FILE,
    NETWORK_NONE,
    READ,
    ROOT_READ_ONLY,
    WRITE,
    Missing,
    SandboxPlan,
)
from execserver.zygote.confinement import LANDLOCK, NATIVE
from tests.support import ways
from tests.support.roots import Outcome, give, identity, mount
from tests.support.ways import Way, listing

SECRET = "the-secret-of-the-neighbours"
KEPT = "kept as it is"


class Ground:
    """A workspace `ws` with `.git`, a denied folder and a denied file, and `out` beside it."""

    def __init__(self, folder: Path, way: Way) -> None:
        self.way = way
        self.folder = folder
        self.ws = folder / "ws"
        self.out = folder / "out"
        self.git = self.ws / ".git"
        self.denied = self.ws / "denied"
        self.key = self.ws / "key"
        for made in (self.git, self.denied, self.out, self.ws / "sub"):
            made.mkdir(parents=True)
        for file in (self.out / "f", self.git / "config"):
            file.write_text(KEPT)
        for file in (self.denied / "f", self.key):
            file.write_text(SECRET)
        (self.ws / "f").write_text("mine")
        give(folder, way.user)
        self._before = self._state()

    def plan(
        self, network: str = NETWORK_NONE, syscall_filter: str = FILTER_RESTRICTED, nesting: bool = False
    ) -> SandboxPlan:
        """Return the workspace policy; what Landlock cannot express is left out for it."""
        ws = os.fsencode(self.ws)
        if self.way.back_end == LANDLOCK:
            mounts = (mount(WRITE, self.ws),)
            return SandboxPlan(ROOT_READ_ONLY, mounts, (), (), network, syscall_filter, writable=(ws,))
        masks = (mount(HIDDEN_DIRECTORY, self.denied), mount(HIDDEN_FILE, self.key))
        missing = tuple(
            Missing(ws + b"/" + name, identity(self.ws), True, True) for name in (b".agents", b".codex")
        )
        return SandboxPlan(
            *(ROOT_READ_ONLY, (mount(WRITE, self.ws), mount(READ, self.git), *masks), missing),
            *((), network, syscall_filter),
            nesting=nesting,
        )

    def run(self, script: str | Sequence[str], plan: SandboxPlan | None = None, **more: Any) -> Outcome:
        """Run a shell script in the workspace, in its view."""
        return ways.run(self.way, plan or self.plan(), script, **{"cwd": self.ws, **more})

    def python(self, code: str, plan: SandboxPlan | None = None) -> Any:
        """Run Python code in the workspace, in its view; return what it assigned to `result`."""
        named = f"ws, out, git, denied, key = {[str(p) for p in self._places()]}\n"
        return ways.run_python(self.way, plan or self.plan(), named + code, cwd=self.ws)

    def need_user_namespaces(self) -> None:
        """Skip where a command can make no user namespace: only an ordinary user can, in a native view."""
        how = self.python("result = syscall(272, 0x10000000)")
        if how != 0:
            assert self.way.user == 0 or self.way.refusal or self.way.back_end != NATIVE, how
            pytest.skip(f"no user namespace is to be had inside: {how}")

    def check_unharmed(self) -> None:
        """Fail unless everything protected is as it was, and nothing protected has appeared."""
        assert self._state() == self._before
        assert not os.path.lexists(self.ws / ".agents")
        assert not os.path.lexists(self.ws / ".codex")

    def _places(self) -> tuple[Path, ...]:
        return self.ws, self.out, self.git, self.denied, self.key

    def _state(self) -> object:
        if self.way.back_end == LANDLOCK:
            return listing(self.out), self.out.stat().st_mode
        status = self.key.lstat()
        key = (status.st_mode, status.st_nlink, status.st_ino, self.key.read_bytes())
        kept = (self.out, self.git, self.denied)
        return [(folder.lstat().st_mode, listing(folder)) for folder in kept], key
