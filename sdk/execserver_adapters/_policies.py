"""The sandbox of an agent's commands, as the adapters' settings name it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from execserver_client import Sandbox

POLICIES: Final = ("workspace-write", "read-only", "full-access")


def checked(policy: str | Mapping[str, Any]) -> str | Mapping[str, Any]:
    """Return a policy as it is; raises ValueError for a name that is none, so that no typo opens a box."""
    if isinstance(policy, str) and policy not in POLICIES:
        raise ValueError(f"there is no sandbox {policy!r}: take {', '.join(POLICIES)} or the object")
    return policy


def is_confined(policy: str | Mapping[str, Any]) -> bool:
    """True if commands run in a sandbox root."""
    return checked(policy) != "full-access"


def sandbox_of(policy: str | Mapping[str, Any], roots: Sequence[str], *, network: bool) -> Sandbox | None:
    """Return the sandbox for commands that may write below `roots`, None for full access.

    The writable folders are fixed: a command's `cwd` is the agent's choice and must not open that folder.
    """
    policy = checked(policy)
    if not isinstance(policy, str):
        return Sandbox.from_json(dict(policy))
    if policy == "full-access":
        return None
    if policy == "read-only":
        return Sandbox.read_only(network=network)
    return Sandbox.workspace_write(roots=list(roots), network=network)
