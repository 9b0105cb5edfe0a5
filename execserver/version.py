"""The version, and `execserver --version`, which is answered before the command line is loaded."""

from __future__ import annotations

import os

__version__ = "0.1.0"
CONTRACT_VERSION = "0.169.0"  # of the Codex CLI whose `exec-server` this one stands in for
CONTRACT_VERSION_VARIABLE = "EXECSERVER_CONTRACT_VERSION"
_MOST_CHARACTERS = 64


def contract_version(given: str) -> str:
    """Return the version of the Codex CLI that this program reports as its own.

    `given` is the value of CONTRACT_VERSION_VARIABLE: those who decide by the version whether they take a
    machine may want another one.  What is no version counts as none.
    """
    is_version = given.isascii() and given[:1].isdigit() and len(given) <= _MOST_CHARACTERS
    return given if is_version and given.isprintable() and " " not in given else CONTRACT_VERSION


def main() -> int:
    """Print the version as the command line does; ignore a reader that is gone."""
    try:
        os.write(1, f"execserver {__version__}\n".encode())
    except OSError:
        pass
    return 0
