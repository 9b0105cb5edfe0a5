"""Writes the blocking twin of `execserver_client`, `execserver_client.sync`; `build.py docs` runs it.

What it writes is kept, so that it can be read and its types are known; a test fails when it is out of date.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tools.sdk.twin import Plan, generate

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "execserver_client"
# Module -> its classes that get a twin, in the same module of `execserver_client.sync`.
TWINS: dict[str, tuple[str, ...]] = {
    "_forwards": ("LocalForward",),
    "_remote_file": ("RemoteFile",),
    "box": ("Box",),
    "files": ("Files",),
    "http": ("HttpStream", "Http"),
    "ports": ("PortStream", "PortListener", "Ports"),
    "process": ("Process", "OutputStream"),
    "sessions": ("Sessions",),
    "watches": ("FileWatch",),
}
# The classes whose end is that of their client.
OWNERS = ("Box",)
# What is public in a module because others of the package use it.
HIDDEN = {
    "process": frozenset(
        (
            *("abandon", "catch_up", "deliver", "deliver_gap", "fail", "next_piece", "raise_failure"),
            *("require_close_stdin", "watched"),
        )
    ),
}


def plans() -> Iterator[Plan]:
    """Yield what is to be written for each module."""
    homes = {name: module for module, names in TWINS.items() for name in names}
    for module, names in TWINS.items():
        yield Plan(PACKAGE, module, names, homes, OWNERS, HIDDEN.get(module, frozenset()))


def pages() -> dict[Path, str]:
    """Return the files to write, with their text."""
    folder = ROOT / "sdk" / PACKAGE
    return {
        folder / "sync" / f"{plan.module}.py": generate((folder / f"{plan.module}.py").read_text(), plan)
        for plan in plans()
    }


def main() -> None:
    """Write them."""
    for path, text in pages().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
