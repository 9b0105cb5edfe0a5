"""Which parts of a configuration file are told, and which projects are trusted (wire contract, section 10).

Plain tables in, plain tables out: no file is read here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from execserver.core.toml_text import Table

DEFAULT_MARKERS = (".git",)

# What a project must not decide for its user: where requests go, who is told of them, which profile is used.
NOT_OF_PROJECTS = frozenset(
    (
        *("chatgpt_base_url", "openai_base_url", "model_provider", "model_providers", "notify", "otel"),
        *("experimental_realtime_webrtc_call_base_url", "experimental_realtime_ws_base_url"),
        *("profile", "profiles"),
    )
)

Path = tuple[str, ...]


def selected(table: Table, paths: Iterable[Path]) -> Table:
    """Return what lies at or below the paths, in the order of the table.

    A path that leads into something other than a table selects that as a whole.
    """
    by_key: dict[str, list[Path]] = {}
    for path in paths:
        by_key.setdefault(path[0], []).append(path[1:])
    found: Table = {}
    for key, value in table.items():
        rest = by_key.get(key)
        if rest is None:
            continue
        if () in rest or not isinstance(value, dict):
            found[key] = value
        elif inner := selected(value, rest):
            found[key] = inner
    return found


def of_project(table: Table) -> Table:
    """Return a project's table without what only the user's own files decide."""
    return {key: value for key, value in table.items() if key not in NOT_OF_PROJECTS}


def root_markers(*tables: Table) -> tuple[str, ...]:
    """Return the names that mark a project's root, by the first table that says so."""
    for table in tables:
        markers = table.get("project_root_markers")
        if isinstance(markers, list):
            return tuple(name for name in markers if isinstance(name, str) and name and "/" not in name)
    return DEFAULT_MARKERS


def is_trusted(user: Table, folders: Iterable[bytes]) -> bool:
    """Return whether the user trusts a project; the first folder with an entry decides."""
    projects = user.get("projects")
    if not isinstance(projects, dict):
        return False
    for folder in folders:
        said = projects.get(os.fsdecode(folder))
        if isinstance(said, dict) and "trust_level" in said:
            return said["trust_level"] == "trusted"
    return False
