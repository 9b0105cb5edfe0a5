"""The kernels on which sandbox roots are tried, and a workspace for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from execserver.sandbox.kernel.syscalls import Kernel
from tests.support.roots import OLD_KERNEL, give

OLD = Kernel(OLD_KERNEL)
KERNELS = [pytest.param(None, id="new"), pytest.param(OLD, id="old")]


def workspace(folder: Path, user: int) -> Path:
    """Make a folder of the user with a git folder, a secret folder and a secret file."""
    for name in (".git", "secret", "sub"):
        (folder / "ws" / name).mkdir(parents=True)
    (folder / "ws" / "secret" / "inner").mkdir()
    (folder / "ws" / "secret" / "key").write_text("key")
    (folder / "ws" / ".env").write_text("password")
    (folder / "ws" / "a.txt").write_text("hello")
    give(folder, user)
    return folder / "ws"
