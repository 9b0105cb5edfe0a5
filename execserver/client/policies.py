"""The usual sandboxes by name, as the contract's objects: for `execserver run --sandbox` and the SDK."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from execserver.protocol.paths import PathUri

READ_ONLY: Final = "read-only"
WORKSPACE_WRITE: Final = "workspace-write"
FULL_ACCESS: Final = "danger-full-access"
POLICIES: Final = (READ_ONLY, WORKSPACE_WRITE, FULL_ACCESS)


def policy_context(
    kind: str,
    cwd: PathUri,
    *,
    roots: Sequence[PathUri] | None = None,
    network: bool = False,
    readable: Sequence[PathUri] | None = None,
    tmp: bool = True,
) -> dict[str, object]:
    """Return the object for one of `POLICIES`.

    `roots` (`cwd` if None) may be written to where the policy allows it, `tmp` says the same of /tmp and
    TMPDIR.  `readable` None is everything, else these folders, `roots` and the system's own.  `network`: may
    make connections.
    """
    policy: dict[str, object] = {"type": kind}
    if network and kind != FULL_ACCESS:  # which has the network anyway
        policy["network_access"] = True
    if readable is not None and kind != FULL_ACCESS:
        policy["access" if kind == READ_ONLY else "read_only_access"] = {
            "type": "restricted",
            "include_platform_defaults": True,
            "readable_roots": [root.uri for root in readable],
        }
    if kind == WORKSPACE_WRITE and not tmp:
        policy |= {"exclude_slash_tmp": True, "exclude_tmpdir_env_var": True}
    return {
        "sandboxPolicy": policy,
        "cwd": cwd.uri,
        "workspaceRoots": [root.uri for root in ([cwd] if roots is None else roots)],
        "windowsSandboxLevel": "disabled",
    }
