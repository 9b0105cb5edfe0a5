"""What a client of `openai-agents` decides for all its sessions, and what no session of it can be.

None of it is in a session's state, which a program may keep anywhere: who changes a state neither weakens the
sandbox nor chooses the machine that the token goes to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agents.sandbox.errors import MountConfigError
from agents.sandbox.manifest import Manifest
from agents.sandbox.session import SandboxSessionState

from execserver_adapters._policies import sandbox_of
from execserver_client import Box, ExecEnvPolicy, ExecServerError, RequestFailed, TransportClosed


@dataclass(frozen=True)
class Limits:
    """What one session may take.

    `output` and `file` are bytes of one command's output and of one file, `workspace` those of a snapshot;
    `command` is the time in seconds of a command that is given none, None for no limit.
    """

    output: int = 16 * 1024 * 1024
    file: int = 64 * 1024 * 1024
    workspace: int = 4 * 1024 * 1024 * 1024
    command: float | None = None


@dataclass(frozen=True)
class Setup:
    """The sandbox, the environment and the limits of every session."""

    policy: str | Mapping[str, Any]
    network: bool
    env: Mapping[str, str]
    env_policy: ExecEnvPolicy
    limits: Limits = field(default_factory=Limits)

    def sandbox(self, root: str, writable: Sequence[str]) -> Any:
        """Return the sandbox of a workspace and of the folders besides it that may be written to."""
        sandbox = sandbox_of(self.policy, [root, *writable], network=self.network)
        return None if sandbox is None else sandbox.context(root)


class Connector(Protocol):
    """Makes the connection of a session, and ends it."""

    async def open(self, state: SandboxSessionState) -> Box:
        """Connect, to the session that the state names if there still is one."""

    async def close(self, box: Box) -> None:
        """End the connection."""


def refuse_unsupported(manifest: Manifest) -> None:
    """Raise ValueError or `MountConfigError` for what a shared machine is not changed for."""
    if manifest.users or manifest.groups:
        raise ValueError(
            "users and groups of a manifest would be accounts of the box; let its administrator make them, "
            "and leave them out of the manifest"
        )
    if any(grant.host_path is not None for grant in manifest.extra_path_grants):
        raise ValueError(
            "a path grant with host_path leads to this machine, and commands run elsewhere; leave it out"
        )
    if manifest.mount_targets():
        raise MountConfigError(
            message="nothing is mounted on a box; copy files with LocalDir, or have it mounted there",
            context={"backend": "execserver"},
        )


def retryable(error: ExecServerError) -> bool | None:
    """Tell whether the same may succeed once more: not if the box refused it, unknown if the box was lost."""
    if isinstance(error, RequestFailed):
        return False
    return True if isinstance(error, TransportClosed) else None
