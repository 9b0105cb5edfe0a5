"""What a client says about the sandbox of its calls (shell tool contract).

A state is accepted or refused as a whole; what is not understood is refused, never guessed.  Unknown members
are ignored.
"""

from __future__ import annotations

import os.path
from typing import NamedTuple

from execserver.protocol.errors import InvalidParams
from execserver.protocol.paths import PathUri
from execserver.protocol.permissions import MANAGED, PermissionProfile
from execserver.protocol.sandbox import FileSystemSandboxContext
from execserver.protocol.sandbox_policy import permissions_of_policy

UPDATE = "codex/sandbox-state/update"
META = "codex/sandbox-state-meta"
CAPABILITY = (
    "codex/sandbox-state"  # in the greeting, and what the newest clients call the member of `_meta`, too
)


class SandboxState(NamedTuple):
    """The sandbox of all further calls.

    `sandbox_cwd` is the directory that a workspace policy makes writable, as the client wrote it: absolute,
    or relative to the server's directory.  The helper's path and the choice of bubblewrap are kept, but this
    server makes its sandboxes without them.
    """

    policy: PermissionProfile
    sandbox_cwd: str
    linux_sandbox_exe: str | None = None
    use_bwrap: bool = False

    @property
    def is_enforced(self) -> bool:
        """True if this server builds the sandbox; else there is none, or another program's."""
        return self.policy.kind == MANAGED

    @property
    def network(self) -> bool:
        """True if commands may use the network."""
        return self.policy.network_enabled

    def context(self, server_cwd: str) -> FileSystemSandboxContext:
        """Return the state as a sandbox context."""
        cwd = os.path.join(server_cwd, self.sandbox_cwd)
        return FileSystemSandboxContext(self.policy, _uri(cwd))


def before_any_update(workdir: str) -> SandboxState:
    """Return the state for a client that has never sent one: read-only."""
    return SandboxState(permissions_of_policy({"type": "read-only"}, None), workdir)


def read_state(params: object) -> SandboxState:
    """Return the state that decoded params describe.  Raises InvalidParams; the caller adds its `data`.

    Clients of 2026 send a `permissionProfile` in place of the policy, or beside it, and the directory as a
    URI.  The profile is more precise, so it counts if both are there.
    """
    if not isinstance(params, dict) or "sandboxCwd" not in params:
        raise InvalidParams("a member is missing")
    helper, use_bwrap = params.get("codexLinuxSandboxExe"), params.get("useLinuxSandboxBwrap", False)
    if not isinstance(helper, str | None) or not isinstance(use_bwrap, bool):
        raise InvalidParams("a member is of another type")
    profile = params.get("permissionProfile")
    if profile is not None:
        policy = PermissionProfile.from_json(profile)
    elif "sandboxPolicy" in params:
        policy = _policy(params["sandboxPolicy"])
    else:
        raise InvalidParams("a member is missing")
    return SandboxState(policy, _folder(params["sandboxCwd"]), helper, use_bwrap)


def _folder(path: object) -> str:
    """Return the path of a directory given as a path or as a URI."""
    if not isinstance(path, str) or "\0" in path:
        raise InvalidParams("no folder has such a name")
    if not path.startswith("file:"):
        return path
    try:
        return PathUri.parse(path).native().decode()
    except UnicodeDecodeError:
        raise InvalidParams("a folder's name is no text") from None


def _policy(value: object) -> PermissionProfile:
    if isinstance(value, dict):
        roots = value.get("writable_roots", [])
        if not isinstance(roots, list) or not all(map(_is_absolute, roots)):
            raise InvalidParams("a root is no absolute path")
        if value.get("type") == "read-only":
            # A member of later contracts.  This contract never gave a read-only command the network.
            value = {name: member for name, member in value.items() if name != "network_access"}
    return permissions_of_policy(value, None)


def _is_absolute(path: object) -> bool:
    return isinstance(path, str) and path.startswith("/") and "\0" not in path


def _uri(path: str) -> PathUri:
    # Policies compare names, so a directory needs one spelling: without dots, without a slash at the end.
    return PathUri.from_native(b"/" + os.path.normpath(path.encode("utf-8", "surrogatepass")).lstrip(b"/"))
