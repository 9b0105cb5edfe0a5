"""The sandbox context of fs/* and process/start requests as plain values: what a client wants to allow.

Standard library only: the server, the sandbox code and the helper processes decode a context with the same
code, so they accept and refuse the same contexts (wire contract, section 8.7).  Decoding has no side effects
and never falls back to "no sandbox": what is not understood is refused.  `sandbox_policy` converts the shape
of the April contract, `sandboxPolicy`, to the permissions it meant.
"""

from __future__ import annotations

from execserver.protocol.error_texts import missing_field, refuse, variant_name, wrong_type
from execserver.protocol.paths import PathUri
from execserver.protocol.permissions import PermissionProfile

MXC = "mxc"
WINDOWS_SANDBOX_LEVELS = ("disabled", "restricted-token", "elevated", MXC)
WINDOWS_PROXY_MODES = ("reconcile", "preserve")


class PolicyContext:
    """The `policyContext` of a context: if it is given, it alone says what symbolic paths mean.

    Without workspace roots there is no project root.  `cwd` may be None.
    """

    __slots__ = ("cwd", "workspace_roots")

    def __init__(self, cwd: PathUri | None = None, workspace_roots: tuple[PathUri, ...] = ()) -> None:
        self.cwd = cwd
        self.workspace_roots = workspace_roots

    @classmethod
    def from_json(cls, value: object, where: str) -> PolicyContext:
        """Decode a policy context.  Raises InvalidParams with the text for the first bad member."""
        if isinstance(value, list):
            value = _by_name(value, ("cwd", "workspaceRoots"), where)
        if not isinstance(value, dict):
            raise wrong_type(value, "struct WireFileSystemPolicyContext", where)
        found = cls()
        for name, member in value.items():
            if name == "cwd":
                found.cwd = _optional_path(member, f"{where}.{name}")
            elif name == "workspaceRoots":
                found.workspace_roots = _paths(member, f"{where}.{name}")
        return found

    def to_json(self) -> dict[str, object]:
        """Return the JSON object that a client would send."""
        roots = [root.uri for root in self.workspace_roots]
        return {"cwd": None if self.cwd is None else self.cwd.uri, "workspaceRoots": roots}

    def key(self) -> tuple[object, ...]:
        """Return the values that equal policy contexts have in common."""
        return (self.cwd and self.cwd.uri, tuple(root.uri for root in self.workspace_roots))


class FileSystemSandboxContext:
    """The `sandbox` object: permissions, and the meaning of their symbolic paths.

    `cwd` is None if the client gave none; with `cwd_is_servers` (contexts of the April contract) the server's
    own directory takes its place.  `workspace_roots` may be empty.  A `policy_context` replaces both for
    symbolic paths.  The Windows members are checked and kept.  The newest members `userHomeDir`,
    `temporaryDirectories` and `windowsSandboxProxySettingsMode` mean nothing on Linux: they are checked only.
    """

    __slots__ = (
        "_hash",
        "cwd",
        "cwd_is_servers",
        "permissions",
        "policy_context",
        "use_legacy_landlock",
        "windows_sandbox_level",
        "windows_sandbox_private_desktop",
        "workspace_roots",
    )

    def __init__(
        self,
        permissions: PermissionProfile,
        cwd: PathUri | None = None,
        workspace_roots: tuple[PathUri, ...] = (),
        windows_sandbox_level: str = "disabled",
        windows_sandbox_private_desktop: bool = False,
        use_legacy_landlock: bool = False,
        cwd_is_servers: bool = False,
        policy_context: PolicyContext | None = None,
    ) -> None:
        self.permissions = permissions
        self.cwd = cwd
        self.workspace_roots = workspace_roots
        self.windows_sandbox_level = windows_sandbox_level
        self.windows_sandbox_private_desktop = windows_sandbox_private_desktop
        self.use_legacy_landlock = use_legacy_landlock
        self.cwd_is_servers = cwd_is_servers
        self.policy_context = policy_context
        self._hash: int | None = None

    @classmethod
    def from_json(cls, value: object, where: str = "sandbox") -> FileSystemSandboxContext:
        """Decode a context.  Raises InvalidParams with the text for the first bad member."""
        if not isinstance(value, dict):
            raise wrong_type(value, "struct FileSystemSandboxContext", where)
        seen = {
            name: _READERS[name](member, f"{where}.{name}")
            for name, member in value.items()
            if name in _READERS
        }
        from_policy = "sandboxPolicy" in value and "permissions" not in value
        if from_policy:
            from execserver.protocol.sandbox_policy import permissions_of_policy

            policy, additional = value["sandboxPolicy"], value.get("additionalPermissions")
            seen["permissions"] = permissions_of_policy(policy, additional)
        for name in ("permissions", "windowsSandboxLevel"):
            if name not in seen:
                raise missing_field(name)
        seen["cwdIsServers"] = from_policy and seen.get("cwd") is None
        return cls(*(seen.get(name, default) for name, default in _DEFAULTS.items()))  # type: ignore[arg-type]

    def to_json(self) -> dict[str, object]:
        """Return the JSON object that a client would send."""
        found: dict[str, object] = {
            "permissions": self.permissions.to_json(),
            "cwd": None if self.cwd is None else self.cwd.uri,
            "workspaceRoots": [root.uri for root in self.workspace_roots],
            "windowsSandboxLevel": self.windows_sandbox_level,
            "windowsSandboxPrivateDesktop": self.windows_sandbox_private_desktop,
            "useLegacyLandlock": self.use_legacy_landlock,
        }
        if self.policy_context is not None:
            found["policyContext"] = self.policy_context.to_json()
        return found

    def _key(self) -> tuple[object, ...]:
        roots = tuple(root.uri for root in self.workspace_roots)
        flags = (self.windows_sandbox_level, self.windows_sandbox_private_desktop, self.use_legacy_landlock)
        policy = self.policy_context and self.policy_context.key()
        return (self.permissions, self.cwd and self.cwd.uri, self.cwd_is_servers, roots, flags, policy)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileSystemSandboxContext) and self._key() == other._key()

    def __hash__(self) -> int:
        if self._hash is None:  # kept: every sandboxed request looks its context up in caches
            self._hash = hash(self._key())
        return self._hash

    def __repr__(self) -> str:
        return f"FileSystemSandboxContext({self.to_json()!r})"


def _permissions(value: object, where: str) -> PermissionProfile:
    return PermissionProfile.from_json(value, where)


def _path(value: object, where: str) -> PathUri:
    if not isinstance(value, str):
        raise wrong_type(value, "a string", where)
    return PathUri.parse(value)


def _optional_path(value: object, where: str) -> PathUri | None:
    return None if value is None else _path(value, where)


def _paths(value: object, where: str) -> tuple[PathUri, ...]:
    if not isinstance(value, list):
        raise wrong_type(value, "a sequence", where)
    return tuple(_path(item, f"{where}[{index}]") for index, item in enumerate(value))


def _optional_paths(value: object, where: str) -> tuple[PathUri, ...] | None:
    return None if value is None else _paths(value, where)


def _by_name(values: list[object], names: tuple[str, ...], where: str) -> dict[str, object]:
    """Return the members of an object that came as a list; those at its end may be missing."""
    if len(values) > len(names):
        raise refuse(f"invalid length {len(values)}, expected fewer elements in array", where)
    return dict(zip(names, values, strict=False))


def _policy_context(value: object, where: str) -> PolicyContext | None:
    return None if value is None else PolicyContext.from_json(value, where)


def _level(value: object, where: str) -> str:
    return variant_name(value, WINDOWS_SANDBOX_LEVELS, where)


def _proxy_mode(value: object, where: str) -> str | None:
    return None if value is None else variant_name(value, WINDOWS_PROXY_MODES, where)


def _flag(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise wrong_type(value, "a boolean", where)
    return value


_READERS = {
    "permissions": _permissions,
    "cwd": _optional_path,
    "workspaceRoots": _paths,
    "policyContext": _policy_context,
    "windowsSandboxLevel": _level,
    "windowsSandboxPrivateDesktop": _flag,
    "useLegacyLandlock": _flag,
    "userHomeDir": _optional_path,
    "temporaryDirectories": _optional_paths,
    "windowsSandboxProxySettingsMode": _proxy_mode,
}
# In the order of the constructor's parameters.
_DEFAULTS: dict[str, object] = {
    "permissions": None,
    "cwd": None,
    "workspaceRoots": (),
    "windowsSandboxLevel": "disabled",
    "windowsSandboxPrivateDesktop": False,
    "useLegacyLandlock": False,
    "cwdIsServers": False,
    "policyContext": None,
}
