"""Imports go down the folders of the large parts only.  Read from the source."""

from __future__ import annotations

import pytest

from tests.support.source import ROOT, Module, modules

# From the top: each imports from those behind it only.  "" is what lies in none.
INNER_FOLDERS = {
    "box": ("web", "transfer", "files", "ports", "commands", "keys", "trees", ""),
    "client": ("", "greenlets", "operations", "relay", "rules", "carriers"),
    "services": (
        *("surviving", "sessions", "egress", "reporting", "running", "resources", "discovery", "machine"),
        *("trees", "file_watches", "files", "launch", "confinement", "http", "ports", "clients", ""),
    ),
}

# What the folders of a part import although it lies above them.
FOR_ALL = {"execserver.client.errors", "execserver.client.options"}


def folder_of(module: Module) -> str:
    """Return the folder of its part that a module lies in, or `""`."""
    return next(iter(module.path.relative_to(ROOT / "execserver").parts[1:-1]), "")


@pytest.mark.parametrize("part", INNER_FOLDERS)
def test_imports_go_down_the_folders_of_a_large_part(part: str) -> None:
    inside = [module for module in modules("execserver") if module.name.startswith(f"execserver.{part}.")]
    folders = {module.name: folder_of(module) for module in inside}
    order = INNER_FOLDERS[part]
    assert set(folders.values()) == set(order)
    wrong = [
        f"{module.path.relative_to(ROOT)}:{found.line} imports {found.module}"
        for module in inside
        for found in module.imports()
        if found.module in folders.keys() - FOR_ALL
        and order.index(folders[found.module]) < order.index(folders[module.name])
    ]
    assert wrong == []
