"""Policies in a few words, for tests."""

from __future__ import annotations

from typing import Any

from execserver.protocol.paths import PathUri
from execserver.protocol.permissions import PermissionProfile
from execserver.protocol.sandbox import FileSystemSandboxContext
from execserver.sandbox.plan import SandboxPlan
from execserver.sandbox.policy.facts import Facts
from execserver.sandbox.policy.host import Host
from execserver.sandbox.policy.planner import plan_for_files, plan_for_process
from execserver.sandbox.policy.policy import Policy, file_policy, process_policy

KINDS = ("root", "minimal", "project_roots", "tmpdir", "slash_tmp", "unknown")
METADATA_RULES = tuple((f"project_roots/{name}", "read") for name in (".git", ".agents", ".codex"))
WORKSPACE = (
    ("root", "read"),
    ("project_roots", "write"),
    ("slash_tmp", "write"),
    ("tmpdir", "write"),
    *METADATA_RULES,
)
READ_ONLY = (("root", "read"),)

Rules = tuple[tuple[str, str], ...]


def entry(place: str, access: str) -> dict[str, Any]:
    """Return a rule as JSON: `/path`, `glob:pattern`, `kind` or `kind/subpath`."""
    kind, _, subpath = place.partition("/")
    path: dict[str, Any]
    if place.startswith("glob:"):
        path = {"type": "glob_pattern", "pattern": place[5:]}
    elif kind in KINDS:
        path = {"type": "special", "value": {"kind": kind, "path": "p", "subpath": subpath or None}}
    else:
        path = {"type": "path", "path": place}
    return {"path": path, "access": access}


def context(
    *rules: tuple[str, str],
    cwd: str | None = "/ws",
    roots: tuple[str, ...] = (),
    network: str = "restricted",
    depth: int | None = None,
) -> FileSystemSandboxContext:
    """Return a context whose files are restricted to the rules."""
    files: dict[str, Any] = {"type": "restricted", "entries": [entry(*rule) for rule in rules]}
    if depth is not None:
        files["glob_scan_max_depth"] = depth
    profile = PermissionProfile.from_json({"type": "managed", "file_system": files, "network": network})
    paths = tuple(PathUri.parse(root) for root in roots)
    return FileSystemSandboxContext(profile, PathUri.parse(cwd) if cwd else None, paths)


def policy(host: Host, *rules: tuple[str, str], for_files: bool = False, **more: Any) -> Policy:
    """Return the policy of such a context on a host; the fallback directory is /fallback."""
    resolve = file_policy if for_files else process_policy
    return resolve(context(*rules, **more), host, b"/fallback")


def plan(
    host: Host, *rules: tuple[str, str], facts: Facts | None = None, for_files: bool = False, **more: Any
) -> SandboxPlan:
    """Return the plan of such a context on a host."""
    make = plan_for_files if for_files else plan_for_process
    return make(policy(host, *rules, for_files=for_files, **more), host, facts)
