"""The file of this program, for symlinks to it and for starting it the way its users do."""

from __future__ import annotations

import os
import sys

from execserver.runtime_paths import ExecServerRuntimePaths


def own_file() -> str:
    """Return the resolved path of the program's file."""
    return os.path.realpath(ExecServerRuntimePaths.detect().codex_self_exe)


def is_startable(program: str) -> bool:
    """Return whether a file can be started by its path alone."""
    return os.path.isfile(program) and os.access(program, os.X_OK)


def start_command() -> list[str]:
    """Return the words that start this program: its file, with the interpreter before it if it needs one."""
    program = own_file()
    return [program] if is_startable(program) else [sys.executable, "-I", program]
