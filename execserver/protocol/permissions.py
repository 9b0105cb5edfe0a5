"""A permission profile: which files may be used, and whether the network, in every accepted shape.

Standard library only, shared by the server and helper processes.  Anything wrong inside a profile gives the
same text, as at the reference server (wire contract, sections 5 and 8.7); nothing is ever guessed.
"""

from __future__ import annotations

from execserver.protocol.error_texts import refuse, variant_name
from execserver.protocol.errors import InvalidParams
from execserver.protocol.paths import PathUri

NO_SUCH_PROFILE = "data did not match any variant of untagged enum PermissionProfileDe"

MANAGED, DISABLED, EXTERNAL = "managed", "disabled", "external"
READ, WRITE, DENY = "read", "write", "deny"
PATH, GLOB_PATTERN = "path", "glob_pattern"
ROOT, MINIMAL, PROJECT_ROOTS, TMPDIR, SLASH_TMP, UNKNOWN = (
    "root",
    "minimal",
    "project_roots",
    "tmpdir",
    "slash_tmp",
    "unknown",
)

MAX_ENTRIES = 4096  # more than bubblewrap takes, and some 0.4 s of the server's time

_ACCESSES = {READ: READ, WRITE: WRITE, DENY: DENY, "none": DENY}
_ACCESS_NAMES = tuple(_ACCESSES)
_NETWORKS = ("restricted", "enabled")
_SPECIAL_KINDS = {kind: kind for kind in (ROOT, MINIMAL, PROJECT_ROOTS, TMPDIR, SLASH_TMP, UNKNOWN)}
_SPECIAL_KINDS["current_working_directory"] = PROJECT_ROOTS
_USIZE_MAX = 2**64 - 1


class _NoProfile(Exception):
    """The value does not have this shape; the caller may try another."""


class SandboxEntry:
    """One rule: which path it is about (`kind`), and the access that it grants or denies.

    `kind` is PATH (with `path`), GLOB_PATTERN (with `text`) or one of the symbolic paths; PROJECT_ROOTS may
    have a `subpath`, UNKNOWN has the name of the symbolic path in `text` and grants nothing.
    """

    __slots__ = ("access", "kind", "path", "subpath", "text")

    def __init__(
        self,
        kind: str,
        access: str,
        path: PathUri | None = None,
        text: str | None = None,
        subpath: str | None = None,
    ) -> None:
        self.kind = kind
        self.access = access
        self.path = path
        self.text = text
        self.subpath = subpath

    def to_json(self) -> dict[str, object]:
        """Return the rule as JSON."""
        return {"path": self._place(), "access": self.access}

    def _place(self) -> dict[str, object]:
        if self.path is not None:
            return {"type": PATH, "path": self.path.uri}
        if self.kind == GLOB_PATTERN:
            return {"type": GLOB_PATTERN, "pattern": self.text}
        value: dict[str, object] = {"kind": self.kind}
        if self.text is not None:
            value["path"] = self.text
        if self.subpath is not None:
            value["subpath"] = self.subpath
        return {"type": "special", "value": value}

    def key(self) -> tuple[object, ...]:
        """Return the values that equal rules have in common."""
        return (self.kind, self.access, self.path and self.path.uri, self.text, self.subpath)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SandboxEntry) and self.key() == other.key()

    def __hash__(self) -> int:
        return hash(self.key())

    def __repr__(self) -> str:
        return f"SandboxEntry({self.to_json()!r})"


class PermissionProfile:
    """A permission profile: `kind` is MANAGED, DISABLED or EXTERNAL.

    `entries` is None unless file access is restricted (which only MANAGED can do); an empty tuple grants
    nothing.  `network_enabled` is True for DISABLED.
    """

    __slots__ = ("entries", "glob_scan_max_depth", "kind", "network_enabled")

    def __init__(
        self,
        kind: str,
        network_enabled: bool,
        entries: tuple[SandboxEntry, ...] | None = None,
        glob_scan_max_depth: int | None = None,
    ) -> None:
        self.kind = kind
        self.network_enabled = network_enabled
        self.entries = entries
        self.glob_scan_max_depth = glob_scan_max_depth

    @classmethod
    def from_json(cls, value: object, where: str = "sandbox.permissions") -> PermissionProfile:
        """Decode a profile in its tagged or its older, untagged shape.  Raises InvalidParams."""
        try:
            return _tagged(value)
        except _NoProfile:
            pass
        try:
            return _untagged(value)
        except _NoProfile:
            raise refuse(NO_SUCH_PROFILE, where) from None

    def to_json(self) -> dict[str, object]:
        """Return the profile in its tagged shape."""
        if self.kind == DISABLED:
            return {"type": DISABLED}
        network = "enabled" if self.network_enabled else "restricted"
        if self.kind == EXTERNAL:
            return {"type": EXTERNAL, "network": network}
        files: dict[str, object] = {"type": "unrestricted"}
        if self.entries is not None:
            files = {"type": "restricted", "entries": [entry.to_json() for entry in self.entries]}
            if self.glob_scan_max_depth is not None:
                files["glob_scan_max_depth"] = self.glob_scan_max_depth
        return {"type": MANAGED, "file_system": files, "network": network}

    def key(self) -> tuple[object, ...]:
        """Return the values that equal profiles have in common."""
        return (self.kind, self.network_enabled, self.entries, self.glob_scan_max_depth)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PermissionProfile) and self.key() == other.key()

    def __hash__(self) -> int:
        return hash(self.key())

    def __repr__(self) -> str:
        return f"PermissionProfile({self.to_json()!r})"


def _tagged(value: object) -> PermissionProfile:
    profile = _object(value)
    kind = profile.get("type")
    if kind == DISABLED:
        return PermissionProfile(DISABLED, True)
    if kind == EXTERNAL:
        return PermissionProfile(EXTERNAL, _network(profile.get("network")))
    if kind != MANAGED:
        raise _NoProfile
    files = _object(profile.get("file_system"))
    network = _network(profile.get("network"))
    if files.get("type") == "unrestricted":
        return PermissionProfile(MANAGED, network)
    if files.get("type") != "restricted":
        raise _NoProfile
    return PermissionProfile(MANAGED, network, _entries(files.get("entries")), _depth(files))


def _untagged(value: object) -> PermissionProfile:
    """Decode the older shape: without `type`, without unknown members, always restricted."""
    profile = _object(value, allowed=("network", "file_system"))
    network = profile.get("network")
    enabled = None if network is None else _object(network).get("enabled")
    if enabled is not None and not isinstance(enabled, bool):
        raise _NoProfile
    files = profile.get("file_system")
    if files is None:
        return PermissionProfile(MANAGED, bool(enabled), ())
    if "entries" in _object(files):
        members = _object(files, allowed=("entries", "glob_scan_max_depth"))
        return PermissionProfile(MANAGED, bool(enabled), _entries(members["entries"]), _depth(members))
    lists = _object(files, allowed=(READ, WRITE))
    entries = _path_list(lists.get(READ), READ) + _path_list(lists.get(WRITE), WRITE)
    return PermissionProfile(MANAGED, bool(enabled), entries)


def _object(value: object, allowed: tuple[str, ...] | None = None) -> dict[str, object]:
    if not isinstance(value, dict) or (allowed is not None and any(name not in allowed for name in value)):
        raise _NoProfile
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _NoProfile
    return value


def _optional_text(value: object) -> str | None:
    return None if value is None else _text(value)


def _choice(value: object, names: tuple[str, ...]) -> str:
    if value in names:
        return value
    try:
        return variant_name(value, names)
    except InvalidParams:
        raise _NoProfile from None


def _network(value: object) -> bool:
    return _choice(value, _NETWORKS) == "enabled"


def _depth(files: dict[str, object]) -> int | None:
    depth = files.get("glob_scan_max_depth")
    if depth is None:
        return None
    if not isinstance(depth, int) or isinstance(depth, bool) or not 1 <= depth <= _USIZE_MAX:
        raise _NoProfile
    return depth


def _path(value: object) -> PathUri:
    try:
        return PathUri.parse(_text(value))
    except InvalidParams:
        raise _NoProfile from None


def _path_list(value: object, access: str) -> tuple[SandboxEntry, ...]:
    items = [] if value is None else _list(value)
    return tuple(SandboxEntry(PATH, access, _path(item)) for item in items)


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise _NoProfile
    if len(value) > MAX_ENTRIES:
        raise refuse(f"more than {MAX_ENTRIES} entries", "sandbox.permissions")
    return value


def _entries(value: object) -> tuple[SandboxEntry, ...]:
    return tuple(_entry(_object(item)) for item in _list(value))


def _check_missing_path_behavior(value: object) -> None:
    """Check what is to happen where the path does not exist: only `skip`, which is done in any case.

    Unlike the rest of a profile, this newer member has texts of its own.
    """
    if value is None:
        return
    where = "sandbox.permissions"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        kind = "integer" if isinstance(value, int) else "floating point"
        raise refuse(f"invalid type: {kind} `{value}`, expected string or map", where)
    variant_name(value, ("skip",), where)


def _entry(entry: dict[str, object]) -> SandboxEntry:
    _check_missing_path_behavior(entry.get("missing_path_behavior"))
    access = _ACCESSES[_choice(entry.get("access"), _ACCESS_NAMES)]
    place = _object(entry.get("path"))
    kind = place.get("type")
    if kind == PATH:
        return SandboxEntry(PATH, access, _path(place.get("path")))
    if kind == GLOB_PATTERN:
        return SandboxEntry(GLOB_PATTERN, access, text=_text(place.get("pattern")))
    if kind != "special":
        raise _NoProfile
    return _special(_object(place.get("value")), access)


def _special(value: dict[str, object], access: str) -> SandboxEntry:
    kind = _SPECIAL_KINDS.get(_text(value.get("kind")))
    if kind is None:
        raise _NoProfile
    if kind == PROJECT_ROOTS:
        return SandboxEntry(kind, access, subpath=_optional_text(value.get("subpath")))
    if kind == UNKNOWN:
        text, subpath = _text(value.get("path")), _optional_text(value.get("subpath"))
        return SandboxEntry(kind, access, text=text, subpath=subpath)
    return SandboxEntry(kind, access)
