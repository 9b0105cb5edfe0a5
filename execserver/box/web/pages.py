"""The files of the console: those of one folder, by name, and nothing else.

They are `static/` beside this module, or what a single-file program has unpacked.  xterm.js is in no
checkout: a build puts it into what it makes, and leaves it in `build/xterm` for the checkout.
"""

from __future__ import annotations

import os
import re
from typing import Final

from execserver.runtime_paths import ExecServerRuntimePaths

CARRIED: Final = "console"
"""The folder in the tree of a single-file program."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9]+)+")
_OF_XTERM: Final = ("xterm.js", "xterm.css")
_LARGEST: Final = 4 * 1024 * 1024


def content(name: str) -> bytes | None:
    """Return a file of the console, None if there is none of that name."""
    if _NAME.fullmatch(name) is None:
        return None
    for folder in _folders(name):
        try:
            with open(os.path.join(folder, name), "rb") as file:
                return file.read(_LARGEST)
        except OSError:
            continue
    return None


def _folders(name: str) -> list[str]:
    program = ExecServerRuntimePaths.detect().program_folder()
    if ExecServerRuntimePaths.unpacked_folder() is not None:
        return [os.path.join(program, CARRIED)]
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "static")
    is_checkout = os.path.exists(os.path.join(program, "build.py"))
    built = [os.path.join(program, "build", "xterm")] if is_checkout and name in _OF_XTERM else []
    return [own, *built]


def has_terminal() -> bool:
    """Return whether xterm.js is there."""
    return content("xterm.js") is not None
