"""Where placeholders are tried: a workspace, and folders for the records of their owners."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from execserver.sandbox.masks.files import identity_of
from execserver.sandbox.masks.records import private_folder
from execserver.sandbox.masks.targets import MaskTargets
from execserver.sandbox.plan import ROOT_READ_ONLY, Missing, SandboxPlan

NOWHERE = b"/nowhere"


class Place:
    """A workspace, a folder for records, and plans for the workspace."""

    def __init__(self, folder: Path) -> None:
        self.workspace = folder / "ws"
        self.workspace.mkdir()
        state = private_folder(os.fsencode(folder / "state"))
        assert state is not None
        self.state = state
        self.runtime_dir = os.fsencode(folder)
        self.other_state = os.fsencode(folder / "other")

    def owner(self) -> MaskTargets:
        return MaskTargets(self.state, (self.other_state,))

    def owner_elsewhere(self) -> MaskTargets:
        """An owner of the same user, started with another folder for its records."""
        private_folder(self.other_state)
        return MaskTargets(self.other_state, (self.state,))

    def missing(self, name: str = ".git", directory: bool = True) -> Missing:
        path = os.fsencode(self.workspace / name)
        parent = identity_of(os.lstat(os.path.dirname(path)))
        return Missing(path, parent, directory, metadata=name.startswith("."))

    def plan(self, *names: str) -> SandboxPlan:
        missing = tuple(self.missing(name) for name in names or (".git",))
        return SandboxPlan(ROOT_READ_ONLY, missing=missing)

    def names(self) -> list[str]:
        return sorted(os.listdir(self.workspace))

    def records(self) -> list[bytes]:
        return os.listdir(self.state)


def killed_owner(place: Place) -> int:
    """Have a process make a placeholder; return its pid."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        place.owner().acquire(place.plan())
        os.write(tell, b"x")
        signal.pause()
    os.close(tell)
    assert os.read(told, 1) == b"x"
    os.close(told)
    return pid
