"""The version, and `execserver --version`, which is answered before the command line is loaded."""

from __future__ import annotations

import os

__version__ = "0.1.0"
CONTRACT_VERSION = "0.169.0"  # of the Codex CLI whose `exec-server` this one stands in for


def main() -> int:
    """Print the version as the command line does; ignore a reader that is gone."""
    try:
        os.write(1, f"execserver {__version__}\n".encode())
    except OSError:
        pass
    return 0
