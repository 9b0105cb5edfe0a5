"""Why a path may not be read or written: the one rule that decides, or nothing said.

An explanation is given only where it is certain: the path is absolute, no link is on the way, it lies in no
part of the view that is not the host's, and the policy withholds what was tried.  A failure that the policy
does not explain has another cause.
"""

from __future__ import annotations

from execserver.protocol.paths import display
from execserver.protocol.permissions import DENY, GLOB_PATTERN, MINIMAL, PATH, READ, WRITE, SandboxEntry
from execserver.sandbox.host import Host, walk
from execserver.sandbox.places import FROM_GIT_FILE, FROM_PLATFORM, Places
from execserver.sandbox.plan import PlanRefused
from execserver.sandbox.policy import METADATA_NAMES, Policy, first_name_below

_NOT_THE_HOSTS = (b"/dev", b"/proc")
_NO_RULE = "no rule"
_SENTENCES = {
    DENY: "{path} may not be read or written ({rule})",
    READ: "{path} may be read but not written ({rule})",
}


def explain(policy: Policy, host: Host, path: bytes, operation: str) -> tuple[dict[str, str], str] | None:
    """Tell why `operation` (READ or WRITE) on an absolute path is refused, or None where that is not certain.

    Returns `{"path", "rule", "access"}`, `access` being what is granted, and the same in one sentence.
    """
    if policy.full_write or not _is_plain(path) or _first_name(path) in _NOT_THE_HOSTS:
        return None
    try:
        if walk(host, path).links:
            return None
        access, rule = _decide(policy, Places(policy, host), path)
    except (OSError, PlanRefused):
        return None
    if access == WRITE or (access == READ and operation == READ):
        return None
    shown = display(path)
    return (
        {"path": shown, "rule": rule, "access": access},
        _SENTENCES[access].format(path=shown, rule=rule),
    )


def name_of_entry(entry: SandboxEntry) -> str:
    """Return a rule in a few words, e.g. `project_roots .git: read`."""
    place = entry.kind
    if entry.kind == PATH and entry.path is not None:
        place = f"path {entry.path.uri}"
    elif entry.kind == GLOB_PATTERN:
        place = f"{GLOB_PATTERN} {entry.text}"
    elif entry.subpath:
        place = f"{entry.kind} {entry.subpath}"
    return f"{place}: {entry.access}"


def _decide(policy: Policy, places: Places, path: bytes) -> tuple[str, str]:
    """Return the access to a link-free path and the rule it comes from."""
    place = places.deciding(path)
    matched = policy.patterns.deepest(path) if policy.globs else None
    if matched is not None and (place is None or len(matched[0]) >= len(place.path)):
        return DENY, f"{GLOB_PATTERN} {display(matched[1])}: {DENY}"
    if place is None:
        return DENY, _NO_RULE
    if place.origin == FROM_PLATFORM:
        return READ, f"{MINIMAL}: {READ}"
    if place.origin == FROM_GIT_FILE:
        return READ, f"git directory of a writable root: {READ}"
    name = first_name_below(place.path, path)
    if place.access == WRITE and name in METADATA_NAMES:
        return READ, f"metadata name {display(name)}: {READ}"
    return place.access, _NO_RULE if place.rule is None else name_of_entry(place.rule.entry)


def _is_plain(path: bytes) -> bool:
    names = path.split(b"/")
    return path == b"/" or (
        names[0] == b"" and not any(name in (b"", b".", b"..") or b"\0" in name for name in names[1:])
    )


def _first_name(path: bytes) -> bytes:
    return b"/" + path[1:].partition(b"/")[0]
