"""The working directory of a confined command: what was asked for, or another where the view lacks that.

As with the contract's program, a folder that the view does not hold is no failure: the command then runs in
its `HOME`, else in `/`, and its `PWD` says so.  Only a folder that was named through a symlink must be there,
since its real path was asked for by nobody.
"""

from __future__ import annotations

import os

from execserver.zygote.lookup import env_value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_HOME, _PWD = b"HOME", b"PWD="


def real_workdir(cwd: bytes) -> bytes:
    """Enter a folder outside of the view; return its path without symlinks, or `cwd` where none is known."""
    try:
        os.chdir(cwd)
        return os.getcwdb()
    except OSError:
        return cwd


def enter_workdir(cwd: bytes, real: bytes, env: Sequence[bytes]) -> Sequence[bytes]:
    """Enter the working directory in the view; return the environment to use.

    `real` is what `real_workdir` returned outside.  Raises OSError where a folder named through a symlink is
    not there.
    """
    if real != cwd:
        if not _enters(real):
            os.chdir(cwd)  # the link itself may be what the view shows
        return env
    if _enters(cwd):
        return env
    home = env_value(env, _HOME)
    place = home if home and _enters(home) else b"/"
    if place == b"/":
        os.chdir(place)
    return [*(entry for entry in env if not entry.startswith(_PWD)), _PWD + place]


def _enters(folder: bytes) -> bool:
    try:
        os.chdir(folder)
    except (OSError, ValueError):  # a NUL in HOME is an error of neither
        return False
    return True
