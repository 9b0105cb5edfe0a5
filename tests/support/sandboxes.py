"""Sandbox contexts as clients send them."""

from __future__ import annotations

from pathlib import Path

from tests.support.peer import Json

Entry = dict[str, Json]


def special(kind: str, access: str, subpath: str | None = None) -> Entry:
    """Return a rule about a special place."""
    value: Json = {"kind": kind} if subpath is None else {"kind": kind, "subpath": subpath}
    return {"path": {"type": "special", "value": value}, "access": access}


def rule(path: Path | str, access: str) -> Entry:
    """Return a rule about a path and what is below it."""
    return {"path": {"type": "path", "path": f"file://{path}"}, "access": access}


def deny_glob(pattern: str) -> Entry:
    """Return a rule that hides what a pattern matches."""
    return {"path": {"type": "glob_pattern", "pattern": pattern}, "access": "deny"}


def managed(*entries: Entry, network: str = "restricted") -> Json:
    """Return permissions that grant what the rules say."""
    return {
        "type": "managed",
        "file_system": {"type": "restricted", "entries": list(entries)},
        "network": network,
    }


def context(permissions: Json, cwd: Path | None = None, **members: Json) -> Json:
    """Return a sandbox context."""
    where = {} if cwd is None else {"cwd": f"file://{cwd}"}
    return {"permissions": permissions, "windowsSandboxLevel": "disabled", **where, **members}


def read_only(cwd: Path, *more: Entry, network: str = "restricted") -> Json:
    """Return the read-only preset, with further rules."""
    return context(managed(special("root", "read"), *more, network=network), cwd)


def workspace_write(cwd: Path, *more: Entry, network: str = "restricted") -> Json:
    """Return the workspace preset without the folders for temporary files, with further rules."""
    rules = [special("root", "read"), special("project_roots", "write")]
    rules += [special("project_roots", "read", name) for name in (".git", ".agents", ".codex")]
    return context(managed(*rules, *more, network=network), cwd)
