"""`execserver --version` alone: the one question that is answered before the command line is loaded."""

from __future__ import annotations

import os

from execserver import __version__


def main() -> int:
    """Print the version as the command line does; a reader that has gone is no failure."""
    try:
        os.write(1, f"execserver {__version__}\n".encode())
    except OSError:
        pass
    return 0
