"""`execserver licenses`: the licence of this program, and of everything that its single file carries.

A single-file program has them as a page, which `tools/freeze/licences.py` writes.  Installed with pip it
carries nothing: then it prints its own licence only, and each package it needs has its own licence beside it.
"""

from __future__ import annotations

import os
import sys

from execserver.leaving import put, until_left
from execserver.runtime_paths import ExecServerRuntimePaths
from execserver.verbs.usage import verb

VERB = "licenses"
PAGE = "licenses.txt"  # in the unpacked tree of a single-file program

_NOTHING_CARRIED = """
The packages this program needs are installed beside it, each with a licence of its own.
"""


def main() -> int:
    """Print the texts; return 0, or 2 for wrong usage."""
    return until_left(_main)


def _main() -> int:
    verb(VERB).parse(sys.argv[1:])
    folder = ExecServerRuntimePaths.detect().program_folder()
    if ExecServerRuntimePaths.unpacked_folder() is None:
        put(_installed() or _read(os.path.join(folder, "LICENSE")))
        put(_NOTHING_CARRIED)
    else:
        put(_read(os.path.join(folder, PAGE)))
    return 0


def _installed() -> str | None:
    """Return the licence as pip installed it; None in a checkout."""
    from importlib.metadata import PackageNotFoundError, distribution  # late: not in a single-file program

    try:
        return distribution("execserver").read_text("licenses/LICENSE")
    except PackageNotFoundError:
        return None


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()
