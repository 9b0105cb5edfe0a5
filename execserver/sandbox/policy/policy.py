"""Which access a sandbox context grants to which path (wire contract, section 8.7).

A policy is a context resolved on one host.  Symbolic entries become paths.  A symlink that is the first name
of a path is followed; deeper ones stay, so that they can be protected themselves.  Of two rules for one path,
deny wins over write, and write over read.  Of the rules above a path the deepest decides; without any, access
is denied.  A policy is about names; what a sandbox root must do about symlinks is the planner's business.
"""

from __future__ import annotations

from execserver.protocol.permissions import (
    DENY,
    GLOB_PATTERN,
    MINIMAL,
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
from execserver.protocol.sandbox import FileSystemSandboxContext
from execserver.sandbox.plan import PlanRefused
from execserver.sandbox.policy.facts import Facts
from execserver.sandbox.policy.globs import (
    DenyPatterns,
    GlobError,
    compile_glob,
    compile_patterns,
    join_pattern,
)
from execserver.sandbox.policy.host import Host, walk
from execserver.sandbox.policy.request_check import restricts_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeVar

    _Value = TypeVar("_Value")

METADATA_NAMES = frozenset({b".git", b".agents", b".codex"})
PLATFORM_ROOTS = (
    *(b"/usr", b"/bin", b"/sbin", b"/etc", b"/lib", b"/lib64", b"/nix/store"),
    b"/run/current-system/sw",
)

# Why an access is what it is.
BY_RULE = "rule"
BY_METADATA = "metadata name"
BY_PATTERN = "pattern"
BY_PLATFORM = "platform default"
BY_DEFAULT = "no rule"
UNRESTRICTED = "unrestricted"

_PROJECT_ROOTS_PREFIX = "codex-project-roots://"
_RANK = {READ: 0, WRITE: 1, DENY: 2}


class Rule:
    """The access to a path and everything below it; `spellings` are the paths as the client gave them."""

    __slots__ = ("access", "entry", "path", "spellings")

    def __init__(self, path: bytes, access: str, entry: SandboxEntry, spellings: tuple[bytes, ...]) -> None:
        self.path = path
        self.access = access
        self.entry = entry
        self.spellings = spellings


class Decision:
    """An access and what decided it: `why` is one of the words above, `place` the path or pattern."""

    __slots__ = ("access", "place", "rule", "why")

    def __init__(self, access: str, why: str, place: bytes = b"", rule: Rule | None = None) -> None:
        self.access = access
        self.why = why
        self.place = place
        self.rule = rule


class Policy:
    """A context's rules, resolved on one host.  `facts` are the host facts that this resolution depends on.

    `full_read` and `full_write` mean that nothing is withheld, `minimal` that the platform's own directories
    may be read.  `rules` are by path; `globs` are the deny patterns: absolute, sorted, unique.
    """

    def __init__(
        self,
        permissions: PermissionProfile,
        host: Host,
        cwd: bytes,
        project_roots: tuple[bytes, ...],
        for_files: bool,
    ) -> None:
        """Resolve the permissions.  Raises PlanRefused for a malformed pattern."""
        entries = permissions.entries or ()
        self.host = host
        self.facts = Facts()
        self.cwd = cwd
        self.project_roots = project_roots
        self.network_enabled = permissions.network_enabled and not for_files
        self.glob_scan_max_depth = permissions.glob_scan_max_depth
        self.full_write = not restricts_files(permissions)
        self.full_read = self.full_write or _reads_everything(entries)
        self.minimal = any(entry.kind == MINIMAL and entry.access != DENY for entry in entries)
        if for_files and not self.full_read:
            self.minimal = True  # a file worker always sees the platform's directories
        self._aliases: dict[bytes, bytes | None] = {}
        self.rules: dict[bytes, Rule] = {}
        self.globs: tuple[bytes, ...] = ()
        self._platform: tuple[bytes, ...] | None = None
        self._patterns: DenyPatterns | None = None
        if not self.full_write:
            for entry in entries:
                for path in self._paths(entry):
                    self._add(path, entry)
            self.globs = self._resolve_globs(entries)
        if self.globs:
            # A new file can match at any time, and no fact would change.
            self.facts.cacheable = False

    def access(self, path: bytes) -> Decision:
        """Decide about an absolute path that has no `.` or `..` in it."""
        if self.full_write:
            return Decision(WRITE, UNRESTRICTED)
        path = self.normalised(path)
        rule = deepest(self.rules, path)
        matched = self.patterns.deepest(path) if self.globs else None
        # A rule below the match is more specific; at the same depth deny wins.
        if matched is not None and (rule is None or len(matched[0]) >= len(rule.path)):
            return Decision(DENY, BY_PATTERN, matched[1])
        if rule is None or (rule.path == b"/" and rule.access == DENY):
            platform = self._platform_root(path)
            if platform is not None:
                return Decision(READ, BY_PLATFORM, platform)
        if rule is None:
            return Decision(DENY, BY_DEFAULT)
        if rule.access == WRITE:
            # Only at the top of a writable root, and also where nothing exists yet.
            name = first_name_below(rule.path, path)
            if name in METADATA_NAMES:
                return Decision(READ, BY_METADATA, join(rule.path, name), rule)
        return Decision(rule.access, BY_RULE, rule.path, rule)

    @property
    def patterns(self) -> DenyPatterns:
        """The deny patterns, compiled when first needed."""
        if self._patterns is None:
            self._patterns = compile_patterns(self.globs)
        return self._patterns

    def normalised(self, path: bytes) -> bytes:
        """Return a path with its first name resolved if that is a symlink."""
        name = path[1:].partition(b"/")[0]
        if name not in self._aliases:
            self._aliases[name] = self._alias(b"/" + name)
        alias = self._aliases[name]
        if alias is None:
            return path
        return join(alias, path[len(name) + 2 :])

    def _alias(self, top: bytes) -> bytes | None:
        """Return where a first name leads; None if it is no symlink or leads nowhere."""
        if top == b"/":
            return None
        found = walk(self.facts.noting(self.host), top)
        return found.path if found.links and not found.rest else None

    def _platform_root(self, path: bytes) -> bytes | None:
        if not self.minimal:
            return None
        if self._platform is None:
            self._platform = tuple([self.normalised(root) for root in PLATFORM_ROOTS])
        for root in self._platform:
            if path == root or is_below(path, root):
                return root
        return None

    def _paths(self, entry: SandboxEntry) -> list[bytes]:
        """Return the paths that an entry stands for; none if it stands for nothing that can exist."""
        kind = entry.kind
        if kind == PATH and entry.path is not None:
            return [entry.path.native()]
        if kind == ROOT:
            return [b"/"]
        if kind == PROJECT_ROOTS:
            return [path for root in self.project_roots for path in _subpath(root, entry.subpath)]
        if kind == TMPDIR:
            return _temporary(self.host.tmpdir)
        if kind == SLASH_TMP:
            self.facts.noting(self.host).stamp(b"/tmp")
            return [b"/tmp"] if self.host.is_dir(b"/tmp") else []
        return []

    def _add(self, spelled: bytes, entry: SandboxEntry) -> None:
        path = self.normalised(spelled)
        known = self.rules.get(path)
        if known is None:
            self.rules[path] = Rule(path, entry.access, entry, (spelled,))
            return
        if spelled not in known.spellings:
            known.spellings += (spelled,)
        if _RANK[entry.access] > _RANK[known.access]:
            known.access, known.entry = entry.access, entry

    def _resolve_globs(self, entries: tuple[SandboxEntry, ...]) -> tuple[bytes, ...]:
        found: set[bytes] = set()
        for entry in entries:
            if entry.kind == GLOB_PATTERN and entry.access == DENY and entry.text:
                found.update(self._absolute_globs(entry.text))
        return tuple(sorted({text for pattern in found for text in self._spellings(pattern)}))

    def _spellings(self, pattern: bytes) -> list[bytes]:
        """Return a pattern and, if its first name is a symlink, the same pattern where that leads.

        Raises PlanRefused for a malformed pattern.
        """
        try:
            globs = compile_glob(pattern)
        except GlobError as error:
            text = pattern.decode("utf-8", "replace")
            raise PlanRefused(f"invalid deny pattern {text}: {error}") from None
        moved = [(glob, self.normalised(glob.prefix)) for glob in globs]
        return [pattern, *(glob.moved(prefix).text for glob, prefix in moved if prefix != glob.prefix)]

    def _absolute_globs(self, text: str) -> list[bytes]:
        if text.startswith(_PROJECT_ROOTS_PREFIX):
            rest = text[len(_PROJECT_ROOTS_PREFIX) :].lstrip("/")
            return [join_pattern(root, _encoded(rest)) for root in self.project_roots]
        if text.startswith("/"):
            return [_encoded(text)]
        return [join_pattern(self.cwd, _encoded(text))]


def file_policy(context: FileSystemSandboxContext, host: Host, server_cwd: bytes) -> Policy:
    """Resolve the context of an fs/* request that passed `request_check.file_request_needs_sandbox`.

    The network is never granted, the platform's directories always are.  `server_cwd` serves where the
    context has no `cwd`.  Raises PlanRefused.
    """
    return _resolved(context, host, server_cwd, for_files=True)


def process_policy(context: FileSystemSandboxContext, host: Host, process_cwd: bytes) -> Policy:
    """Resolve the context of a process/start that passed `request_check.process_request_needs_sandbox`.

    `process_cwd`, the directory of the process, serves where the context has no `cwd`.  Raises PlanRefused.
    """
    return _resolved(context, host, process_cwd, for_files=False)


def join(directory: bytes, name: bytes) -> bytes:
    """Return a path below a directory; the directory itself for an empty name."""
    if not name:
        return directory
    return b"/" + name if directory == b"/" else directory + b"/" + name


def is_below(path: bytes, root: bytes) -> bool:
    """Tell whether a path is strictly below another."""
    return path.startswith(root if root == b"/" else root + b"/") and path != root


def deepest(table: Mapping[bytes, _Value], path: bytes) -> _Value | None:
    """Return what a table has for a path, or for the deepest directory above it; None for none of them."""
    while True:
        value = table.get(path)
        if value is not None or path == b"/":
            return value
        path = path.rpartition(b"/")[0] or b"/"


def first_name_below(root: bytes, path: bytes) -> bytes:
    """Return the name that follows `root` in a path at or below it; nothing for the root itself."""
    return path[len(root) + (root != b"/") :].partition(b"/")[0]


def _resolved(context: FileSystemSandboxContext, host: Host, fallback: bytes, for_files: bool) -> Policy:
    cwd = fallback if context.cwd is None else context.cwd.native()
    roots = tuple([root.native() for root in context.workspace_roots]) or (cwd,)
    # A policy context alone defines the project roots, and its `cwd` replaces the other one.
    policy = context.policy_context
    if policy is not None:
        cwd = cwd if policy.cwd is None else policy.cwd.native()
        roots = tuple([root.native() for root in policy.workspace_roots])  # no others where it names none
    return Policy(context.permissions, host, cwd, roots, for_files)


def _reads_everything(entries: tuple[SandboxEntry, ...]) -> bool:
    return any(entry.kind == ROOT and entry.access != DENY for entry in entries) and all(
        entry.access != DENY for entry in entries
    )


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _subpath(root: bytes, subpath: str | None) -> list[bytes]:
    """Return a path below a project root, dots resolved by name; an absolute `subpath` replaces the root."""
    if not subpath:
        return [root]
    below = _encoded(subpath)
    if b"\0" in below:
        return []
    return [_without_dots(below if below.startswith(b"/") else root + b"/" + below)]


def _temporary(tmpdir: bytes | None) -> list[bytes]:
    """Return the directory that TMPDIR names.  `/` stands for none: it would make everything writable."""
    path = _without_dots(tmpdir) if tmpdir else b"/"
    return [] if path == b"/" else [path]


def _without_dots(path: bytes) -> bytes:
    names: list[bytes] = []
    for name in path.split(b"/"):
        if name == b"..":
            del names[-1:]
        elif name not in (b"", b"."):
            names.append(name)
    return b"/" + b"/".join(names)
