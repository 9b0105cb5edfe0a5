"""Programs for tests: files that start this project the way an installed one is started."""

from __future__ import annotations

import site
import sys
from pathlib import Path

from execserver.mcp.interception import script_head
from tests.support.source import ROOT


def write_program(path: Path, before: str = "") -> Path:
    """Write an executable that is this project; `before` is Python that runs first in each of its starts."""
    # Not the folders of the test run's own search path: what is installed is what a user would have.
    paths = [str(ROOT), *site.getsitepackages()]
    path.write_text(
        f"{script_head(sys.executable)}import sys\nsys.path[:0] = {paths!r}\n{before}\n"
        "from execserver.dispatch import main\nsys.exit(main())\n"
    )
    path.chmod(0o755)
    return path


def write_script(path: Path, text: str) -> Path:
    """Write a shell script."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path
