"""The files of the console: what is in `static/`, by name, and nothing else.

xterm.js is not in a checkout; a build puts it there, and a checkout finds what a build has left in `build/`.
"""

from __future__ import annotations

import os
import re
from typing import Final

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9]+)+")
_FOLDER: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "static")
# Where `tools/freeze/xterm.py` leaves it, in a checkout.
_BUILT: Final = os.path.normpath(os.path.join(_FOLDER, "../../../../build/xterm"))
_OF_XTERM: Final = ("xterm.js", "xterm.css")
_LARGEST: Final = 4 * 1024 * 1024


def content(name: str) -> bytes | None:
    """Return a file of the console, None if there is none of that name."""
    if _NAME.fullmatch(name) is None:
        return None
    folders = (_FOLDER, _BUILT) if name in _OF_XTERM else (_FOLDER,)
    for folder in folders:
        try:
            with open(os.path.join(folder, name), "rb") as file:
                return file.read(_LARGEST)
        except OSError:
            continue
    return None


def has_terminal() -> bool:
    """Return whether xterm.js is there."""
    return content("xterm.js") is not None
