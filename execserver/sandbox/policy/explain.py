"""Explains why a path may not be read or written: names the one rule that decides, or nothing.

An explanation is given only where it is certain: the path is absolute and has no symlink, it is not in a part
of the sandbox root that is not the host's, and the policy withholds what was tried.  A failure that the
policy does not explain has another cause.
"""

from __future__ import annotations

from execserver.protocol.paths import display
from execserver.protocol.permissions import DENY, GLOB_PATTERN, MINIMAL, PATH, READ, WRITE, SandboxEntry
from execserver.sandbox.plan import HIDDEN_DIRECTORY, HIDDEN_FILE, PASSAGE, PlanRefused, SandboxPlan
from execserver.sandbox.policy.host import Host, walk
from execserver.sandbox.policy.policy import METADATA_NAMES, Policy, deepest, first_name_below
from execserver.sandbox.policy.resolved_paths import FROM_GIT_FILE, FROM_PLATFORM, ResolvedPaths

_NOT_THE_HOSTS = (b"/dev", b"/proc")
_NO_RULE = "no rule"
_MASKS = (HIDDEN_DIRECTORY, HIDDEN_FILE, PASSAGE)
_SENTENCES = {
    DENY: "{path} may not be read or written ({rule})",
    READ: "{path} may be read but not written ({rule})",
}


def explain(policy: Policy, host: Host, path: bytes, operation: str) -> tuple[dict[str, str], str] | None:
    """Tell why `operation` (READ or WRITE) on an absolute path is refused, or None where that is not certain.

    Returns `{"path", "rule", "access"}`, where `access` is what is granted, and the same as a sentence.
    """
    if policy.full_write or not _is_plain(path) or _first_name(path) in _NOT_THE_HOSTS:
        return None
    try:
        # With a symlink, the path that decides is another one than the user sees.
        if walk(host, path).links:
            return None
        access, rule = _decide(policy, ResolvedPaths(policy, host), path)
    except (OSError, PlanRefused):
        return None
    if access == WRITE or (access == READ and operation == READ):
        return None
    shown = display(path)
    return (
        {"path": shown, "rule": rule, "access": access},
        _SENTENCES[access].format(path=shown, rule=rule),
    )


def readable(policy: Policy, host: Host, plan: SandboxPlan, paths: list[bytes]) -> list[bool]:
    """Return of each absolute path without symlinks whether the policy and its plan let it be read.

    Nothing need exist there.  The plan also masks what no policy names: the server's own secrets.
    """
    masks = {mount.path: mount.kind in _MASKS for mount in plan.mounts}
    if policy.full_write:
        return [not deepest(masks, path) for path in paths]
    try:
        places = ResolvedPaths(policy, host)
    except (OSError, PlanRefused):
        return [False] * len(paths)
    return [not deepest(masks, path) and _decide(policy, places, path)[0] != DENY for path in paths]


def name_of_entry(entry: SandboxEntry) -> str:
    """Return an entry in a few words, for example `project_roots .git: read`."""
    resolved = entry.kind
    if entry.kind == PATH and entry.path is not None:
        resolved = f"path {entry.path.uri}"
    elif entry.kind == GLOB_PATTERN:
        resolved = f"{GLOB_PATTERN} {entry.text}"
    elif entry.subpath:
        resolved = f"{entry.kind} {entry.subpath}"
    return f"{resolved}: {entry.access}"


def _decide(policy: Policy, places: ResolvedPaths, path: bytes) -> tuple[str, str]:
    """Return the access to a path without symlinks, and the rule that it comes from."""
    resolved = places.deciding(path)
    matched = policy.patterns.deepest(path) if policy.globs else None
    if matched is not None and (resolved is None or len(matched[0]) >= len(resolved.path)):
        return DENY, f"{GLOB_PATTERN} {display(matched[1])}: {DENY}"
    if resolved is None:
        return DENY, _NO_RULE
    if resolved.origin == FROM_PLATFORM:
        return READ, f"{MINIMAL}: {READ}"
    if resolved.origin == FROM_GIT_FILE:
        return READ, f"git directory of a writable root: {READ}"
    name = first_name_below(resolved.path, path)
    if resolved.access == WRITE and name in METADATA_NAMES:
        return READ, f"metadata name {display(name)}: {READ}"
    return resolved.access, _NO_RULE if resolved.rule is None else name_of_entry(resolved.rule.entry)


def _is_plain(path: bytes) -> bool:
    names = path.split(b"/")
    return path == b"/" or (
        names[0] == b"" and not any(name in (b"", b".", b"..") or b"\0" in name for name in names[1:])
    )


def _first_name(path: bytes) -> bytes:
    return b"/" + path[1:].partition(b"/")[0]
