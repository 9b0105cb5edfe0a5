"""The sandbox request check: what a decoded context restricts, and the checks before any sandbox is built.

Standard library only, no I/O.  The order of the checks and their texts are those of the wire contract,
sections 8.7 and 12.  The answer False means that the request may run directly; True, that it must run in a
sandbox or not at all.
"""

from __future__ import annotations

from execserver.protocol.errors import InvalidParams, InvalidRequest
from execserver.protocol.paths import PathUri
from execserver.protocol.permissions import (
    DENY,
    GLOB_PATTERN,
    MINIMAL,
    PROJECT_ROOTS,
    ROOT,
    UNKNOWN,
    WRITE,
    PermissionProfile,
    SandboxEntry,
)
from execserver.protocol.sandbox import MXC, FileSystemSandboxContext


def restricts_files(permissions: PermissionProfile) -> bool:
    """Tell whether a profile withholds any file access.  A path of another kind of host always counts."""
    entries = permissions.entries
    if entries is None:
        return False
    # Such a path could mean anything; the checks after this one refuse the request for it.
    if any(_foreign_path_error(entry) is not None for entry in entries):
        return True
    if not any(entry.kind == ROOT and entry.access == WRITE for entry in entries):
        return True
    written = {_target(entry) for entry in entries if entry.access == WRITE}
    return any(_narrows(entry, written) for entry in entries)


def restricts_network(permissions: PermissionProfile) -> bool:
    """Tell whether a profile withholds the network."""
    return not permissions.network_enabled


def needs_cwd(permissions: PermissionProfile) -> bool:
    """Tell whether rules depend on a working directory: project roots, or patterns that are not absolute."""
    return any(
        entry.kind == PROJECT_ROOTS or (entry.kind == GLOB_PATTERN and not (entry.text or "").startswith("/"))
        for entry in permissions.entries or ()
    )


def file_request_needs_sandbox(context: FileSystemSandboxContext | None, *paths: PathUri) -> bool:
    """Check the paths of an fs/* request, then those of its context; tell whether it needs a sandbox.

    This holds for fs/open, too, which the wire contract refuses in a sandbox and newer servers allow.
    Raises InvalidRequest with the text for the first path that belongs to another kind of host.
    """
    for path in paths:
        path.native()
    if context is None or not restricts_files(context.permissions):
        return False
    if context.cwd is not None:
        context.cwd.native()
    elif needs_cwd(context.permissions) and not (context.cwd_is_servers or context.policy_context):
        raise InvalidRequest("file system sandbox context with dynamic permissions requires cwd")
    for entry in context.permissions.entries or ():
        reason = _foreign_path_error(entry)
        if reason is not None:
            raise InvalidRequest(f"invalid sandbox permission path URI: {reason}")
    policy = context.policy_context
    if policy is not None and policy.cwd is not None:
        policy.cwd.native()
    for root in (*context.workspace_roots, *(policy.workspace_roots if policy is not None else ())):
        reason = _path_error(root)
        if reason is not None:
            text = "file system sandbox workspace root is not native to this exec-server host"
            raise InvalidRequest(f"{text}: {reason}")
    return True


def process_request_needs_sandbox(
    context: FileSystemSandboxContext, enforce_managed_network: bool = False
) -> bool:
    """Check the context of a process/start request; tell whether the process needs a sandbox.

    Raises InvalidParams.  The caller checks `argv` and the process's own directory afterwards.
    """
    if context.windows_sandbox_level == MXC:
        raise InvalidParams("native MXC is unavailable on this executor")
    for entry in context.permissions.entries or ():
        reason = _foreign_path_error(entry)
        if reason is not None:
            raise InvalidParams(f"invalid sandbox permission path URI: {reason}")
    _check_host_form("sandbox cwd", context.cwd)
    for root in context.workspace_roots:
        _check_host_form("sandbox workspace root", root)
    if context.policy_context is not None:
        _check_host_form("sandbox policy cwd", context.policy_context.cwd)
        for root in context.policy_context.workspace_roots:
            _check_host_form("sandbox policy workspace root", root)
    permissions = context.permissions
    return enforce_managed_network or restricts_files(permissions) or restricts_network(permissions)


def check_process_cwd(cwd: PathUri, sandboxed: bool) -> bytes:
    """Return the native directory of a process/start request; `sandboxed` if it carries a context.

    Raises InvalidParams, with another text where it is `sandboxed`.
    """
    reason = _path_error(cwd)
    if reason is None:
        return cwd.native()
    if sandboxed:
        text = f"failed to prepare process sandbox: command cwd URI `{cwd.uri}` is not valid on this host"
    else:
        text = f"cwd URI `{cwd.uri}` is not valid on this exec-server host"
    raise InvalidParams(f"{text}: {reason}")


def _narrows(entry: SandboxEntry, written: set[tuple[object, ...]]) -> bool:
    """Tell whether a rule takes something away from write access to everything."""
    # The wire contract's list: `minimal` and unknown kinds grant reading only, and so take nothing away.
    if entry.access == WRITE or entry.kind in (MINIMAL, UNKNOWN):
        return False
    if entry.access == DENY or entry.kind == GLOB_PATTERN:
        return True
    # A `read` for what a `write` names, too, narrows nothing: write wins.
    return entry.kind != ROOT and _target(entry) not in written


def _target(entry: SandboxEntry) -> tuple[object, ...]:
    return (entry.kind, entry.path, entry.subpath)


def _foreign_path_error(entry: SandboxEntry) -> str | None:
    return None if entry.path is None else _path_error(entry.path)


def _path_error(path: PathUri) -> str | None:
    """Return why a path is not one of this host, or None."""
    try:
        path.native()
    except InvalidRequest as error:
        return error.message
    return None


def _check_host_form(what: str, path: PathUri | None) -> None:
    reason = None if path is None else _path_error(path)
    if path is not None and reason is not None:
        raise InvalidParams(f"{what} URI `{path.uri}` is not valid on this exec-server host: {reason}")
