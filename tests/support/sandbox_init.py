"""The compiled filter template (launcher/init) for tests, made once by the compiler of this machine."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.support.source import ROOT
from tools.freeze.head import compile_init, installed

PYTHON, COMPILED = MAKERS = "python", "compiled"  # what makes the sandboxes of a zygote


def program_of(maker: str) -> bytes:
    """Return the program for a zygote with this maker, nothing for Python; skip without a compiler."""
    if maker == PYTHON:
        return b""
    program = _compiled()
    if program is None:
        pytest.skip("no C compiler links statically, or there is no sandbox init for this machine")
    return os.fsencode(program)


@functools.lru_cache(1)
def _compiled() -> Path | None:
    folder = Path(tempfile.mkdtemp(prefix="execserver-init-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)  # for zygotes of other users
    # Only what is installed here: no test fetches the pinned compiler.
    return compile_init(ROOT / "launcher", folder, folder) if installed() else None
