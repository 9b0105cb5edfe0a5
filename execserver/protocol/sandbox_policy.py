"""The `sandboxPolicy` of the April contract: the permissions that each of its four kinds meant.

Standard library only.  The permissions are never wider than the policy: missing members get their documented
defaults, and what is not understood is refused (wire contract, section 15).
"""

from __future__ import annotations

from execserver.protocol.error_texts import missing_field, refuse, variant_name, wrong_type
from execserver.protocol.paths import PathUri
from execserver.protocol.permissions import (
    DISABLED,
    EXTERNAL,
    MANAGED,
    MINIMAL,
    NO_SUCH_PROFILE,
    PATH,
    PROJECT_ROOTS,
    READ,
    ROOT,
    SLASH_TMP,
    TMPDIR,
    WRITE,
    PermissionProfile,
    SandboxEntry,
)

PROTECTED_NAMES = (".git", ".agents", ".codex")  # they stay read-only at the top of the workspace
_KINDS = ("danger-full-access", "read-only", "external-sandbox", "workspace-write")
_NETWORKS = ("restricted", "enabled")
_ACCESSES = ("full-access", "restricted")
_WHERE = "sandbox.sandboxPolicy"


def permissions_of_policy(value: object, additional: object) -> PermissionProfile:
    """Return the permissions of a `sandboxPolicy` and its `additionalPermissions`.  Raises InvalidParams."""
    policy = _object(value, "enum SandboxPolicy", _WHERE)
    kind = _tag(policy, _KINDS, _WHERE)
    more = _additional_entries(additional)
    if kind == "danger-full-access":
        return PermissionProfile(DISABLED, True)
    if kind == "external-sandbox":
        network = variant_name(
            policy.get("network_access", "restricted"), _NETWORKS, f"{_WHERE}.network_access"
        )
        return PermissionProfile(EXTERNAL, network == "enabled")
    entries = _read_only(policy) if kind == "read-only" else _workspace_write(policy)
    return PermissionProfile(MANAGED, _flag(policy, "network_access", False, _WHERE), entries + more)


def _read_only(policy: dict[str, object]) -> tuple[SandboxEntry, ...]:
    return _readable(policy, "access")


def _workspace_write(policy: dict[str, object]) -> tuple[SandboxEntry, ...]:
    entries = _readable(policy, "read_only_access")
    entries += (SandboxEntry(PROJECT_ROOTS, WRITE),)
    if not _flag(policy, "exclude_slash_tmp", False, _WHERE):
        entries += (SandboxEntry(SLASH_TMP, WRITE),)
    if not _flag(policy, "exclude_tmpdir_env_var", False, _WHERE):
        entries += (SandboxEntry(TMPDIR, WRITE),)
    entries += _path_entries(policy, "writable_roots", WRITE, _WHERE)
    return entries + tuple(SandboxEntry(PROJECT_ROOTS, READ, subpath=name) for name in PROTECTED_NAMES)


def _readable(policy: dict[str, object], member: str) -> tuple[SandboxEntry, ...]:
    """Return the rules of an access object: everything, or platform defaults and a list of roots."""
    if member not in policy:
        return (SandboxEntry(ROOT, READ),)
    where = f"{_WHERE}.{member}"
    access = _object(policy[member], "enum ReadOnlyAccess", where)
    if _tag(access, _ACCESSES, where) == "full-access":
        return (SandboxEntry(ROOT, READ),)
    defaults = _flag(access, "include_platform_defaults", True, where)
    entries = (SandboxEntry(MINIMAL, READ),) if defaults else ()
    return entries + _path_entries(access, "readable_roots", READ, where)


def _additional_entries(value: object) -> tuple[SandboxEntry, ...]:
    """Return the file rules of an additional profile; its network part had no effect in that contract."""
    if value is None:
        return ()
    where = "sandbox.additionalPermissions"
    if not isinstance(value, dict) or "type" in value:
        raise refuse(NO_SUCH_PROFILE, where)
    return PermissionProfile.from_json(value, where).entries or ()


def _path_entries(owner: dict[str, object], member: str, access: str, where: str) -> tuple[SandboxEntry, ...]:
    roots = owner.get(member, [])
    where = f"{where}.{member}"
    if not isinstance(roots, list):
        raise wrong_type(roots, "a sequence", where)
    for root in roots:
        if not isinstance(root, str):
            raise wrong_type(root, "a string", where)
    return tuple(SandboxEntry(PATH, access, PathUri.parse(root)) for root in roots)


def _object(value: object, wanted: str, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise wrong_type(value, wanted, where)
    return value


def _tag(owner: dict[str, object], names: tuple[str, ...], where: str) -> str:
    if "type" not in owner:
        raise missing_field("type")
    return variant_name(owner["type"], names, f"{where}.type")


def _flag(owner: dict[str, object], member: str, default: bool, where: str) -> bool:
    value = owner.get(member, default)
    if not isinstance(value, bool):
        raise wrong_type(value, "a boolean", f"{where}.{member}")
    return value
