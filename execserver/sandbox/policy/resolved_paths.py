"""Moves a policy's rules to resolved paths: where each path leads after all symlinks are followed.

A sandbox root is made of directories and files, not of names, so every rule is moved to the resolved path of
what it names.  Rules of different names that meet at one resolved path leave the least access.

A symlink that the sandbox could replace never decides: such a rule is refused.  A command that may write
`/tmp` could otherwise turn the workspace `/tmp/link` into somebody's home for the next command.
"""

from __future__ import annotations

from stat import S_IFDIR, S_IFLNK, S_IFREG

from execserver.protocol.paths import display
from execserver.protocol.permissions import DENY, READ, WRITE
from execserver.sandbox.plan import PlanRefused
from execserver.sandbox.policy.host import Found, Host, Stamp, walk
from execserver.sandbox.policy.policy import (
    METADATA_NAMES,
    PLATFORM_ROOTS,
    Policy,
    Rule,
    deepest,
    first_name_below,
    is_below,
    join,
)

_RANK = {DENY: 0, READ: 1, WRITE: 2}
_GITDIR_BYTES = 8192  # more than the longest path

# Where a resolved path comes from.
FROM_RULE = "rule"
FROM_PLATFORM = "platform default"
FROM_GIT_FILE = "git directory"
FROM_PATTERN = "pattern"


class ResolvedPath:
    """One resolved path and the access to it.

    `found` is what is there, `named` what the policy calls it.  `links` are the symlinks on the way, each
    with its text.  `rule` is the policy's rule, `pattern` the deny pattern that matched.
    """

    __slots__ = ("access", "found", "links", "named", "origin", "path", "pattern", "rule")

    def __init__(
        self,
        access: str,
        found: Found,
        named: bytes,
        origin: str = FROM_RULE,
        rule: Rule | None = None,
        pattern: bytes = b"",
    ) -> None:
        self.path = found.whole()
        self.access = access
        self.found = found
        self.named = named
        self.origin = origin
        self.rule = rule
        self.pattern = pattern
        self.links = found.links

    def exists(self) -> bool:
        """Tell whether something is there that can be shown, masked or protected."""
        return not self.found.rest

    def is_directory(self) -> bool:
        """Tell whether a directory is there."""
        return not self.found.rest and self.found.stamp[2] == S_IFDIR


class ResolvedPaths:
    """The resolved paths of one policy on one host.

    `by_path` has all of them; `pattern_roots` are the literal directories that deny patterns begin with.
    Raises PlanRefused for what no sandbox root can enforce.
    """

    def __init__(self, policy: Policy, host: Host) -> None:
        self.policy = policy
        self.host = host
        self.by_path: dict[bytes, ResolvedPath] = {}
        self.pattern_roots: set[bytes] = set()
        self._plain: dict[bytes, Stamp] = {}  # directories whose path has no symlinks
        named: list[ResolvedPath] = []
        for rule in policy.rules.values():
            for spelled in rule.spellings:
                resolved = ResolvedPath(rule.access, self._walk(spelled), spelled, rule=rule)
                named.append(resolved)
                self._add(resolved)
        # Only now: which symlinks the sandbox could replace depends on all rules.
        for resolved in named:
            if resolved.links:
                self._check_links(resolved, named)
            if resolved.found.blocked and resolved.access != WRITE and self.is_writable(resolved.found.path):
                raise refused(resolved.access, resolved.named, b"it cannot be looked at")
        if policy.minimal:
            self._add_platform_roots()
        for resolved in [resolved for resolved in named if resolved.access == WRITE]:
            self._add_git_directory(resolved)

    def deciding(self, path: bytes) -> ResolvedPath | None:
        """Return the deepest place at or above a link-free path."""
        return deepest(self.by_path, path)

    def access(self, path: bytes) -> str:
        """Return the access to a path without symlinks."""
        resolved = self.deciding(path)
        if resolved is None:
            return DENY
        if resolved.access == WRITE and first_name_below(resolved.path, path) in METADATA_NAMES:
            return READ
        return resolved.access

    def is_writable(self, path: bytes) -> bool:
        """Tell whether the sandbox may change what is at a path without symlinks."""
        return self.access(path) == WRITE

    def add_denied(self, found: Found, named: bytes, pattern: bytes) -> None:
        """Deny a path that a pattern led to."""
        self._add(ResolvedPath(DENY, found, named, FROM_PATTERN, pattern=pattern))

    def writable_link(self, found: Found) -> bytes | None:
        """Return a symlink on the way that the sandbox could replace; None without one."""
        for link, _ in found.links:
            # Its directory counts: no mount can protect the symlink itself.
            if self.is_writable(link.rpartition(b"/")[0] or b"/"):
                return link
        return None

    def _walk(self, path: bytes) -> Found:
        """Follow a path; only its last name where its directory is known to be reached without symlinks."""
        parent, _, name = path.rpartition(b"/")
        above = self._plain.get(parent)
        if above is None or name in (b"", b".", b".."):
            found = walk(self.host, path)
        else:
            try:
                stamp = self.host.stamp(path)
            except OSError:
                return Found(parent, above, (name,), (), blocked=True)
            if stamp is None:
                return Found(parent, above, (name,), ())
            found = walk(self.host, path) if stamp[2] == S_IFLNK else Found(path, stamp, (), ())
        if found.path == path and found.stamp[2] == S_IFDIR:
            self._plain[path] = found.stamp
        return found

    def _add(self, resolved: ResolvedPath) -> None:
        known = self.by_path.get(resolved.path)
        if known is None:
            self.by_path[resolved.path] = resolved
            return
        # The symlinks of both: in an empty root, each of the policy's paths must lead here.
        kept, other = (
            (known, resolved) if _RANK[known.access] <= _RANK[resolved.access] else (resolved, known)
        )
        kept.links += tuple(link for link in other.links if link not in kept.links)
        self.by_path[resolved.path] = kept

    def _check_links(self, resolved: ResolvedPath, named: list[ResolvedPath]) -> None:
        link = self.writable_link(resolved.found)
        if link is None or (resolved.access == WRITE and self._adds_nothing(resolved, named)):
            return
        raise refused(resolved.access, resolved.named, b"it crosses writable symlink " + link)

    def _adds_nothing(self, resolved: ResolvedPath, named: list[ResolvedPath]) -> bool:
        """Tell whether the plan is the same without this rule: then a replaced symlink changes nothing.

        That the path lies in another writable root is not enough.  As a root it has protected metadata, which
        the next plan would leave open once the symlink leads elsewhere.
        """
        if self.access(resolved.path) != WRITE or not resolved.exists():
            return True  # the rule grants nothing
        return any(
            other.path == resolved.path and not other.links and other.access == WRITE for other in named
        )

    def _add_platform_roots(self) -> None:
        if self.access(b"/") != DENY:
            return
        for root in PLATFORM_ROOTS:
            resolved = ResolvedPath(READ, walk(self.host, root), root, FROM_PLATFORM)
            if not resolved.exists() or self.writable_link(resolved.found) is not None:
                continue
            known = self.deciding(resolved.path)
            if known is None or (known.path == b"/" and known.access == DENY):
                self.by_path[resolved.path] = resolved
            elif known.access != DENY:
                known.links += tuple(link for link in resolved.links if link not in known.links)

    def _add_git_directory(self, root: ResolvedPath) -> None:
        """Protect the directory that a `.git` file at the top of a writable root points to.

        It becomes read-only if it could be written; a `.git` file never grants anything.
        """
        git_file = join(root.path, b".git")
        if not root.is_directory() or self.access(git_file) == WRITE:
            return
        try:
            stamp = self.host.stamp(git_file)
            if stamp is None or stamp[2] != S_IFREG:
                return
            target = git_directory(self.host.read_start(git_file, _GITDIR_BYTES), root.path)
        except OSError as error:
            raise refused(READ, git_file, b"it cannot be read") from error
        if target is None:
            return
        resolved = ResolvedPath(READ, walk(self.host, target), target, FROM_GIT_FILE)
        link = self.writable_link(resolved.found)
        if link is not None:
            raise refused(READ, target, b"it crosses writable symlink " + link)
        if resolved.found.blocked and self.is_writable(resolved.found.path):
            raise refused(READ, target, b"it cannot be looked at")
        # A pointer at a workspace, or above it, names no git directory; to obey would close the workspace.
        holds_root = any(
            other.access == WRITE and (other.path == resolved.path or is_below(other.path, resolved.path))
            for other in self.by_path.values()
        )
        if not holds_root and resolved.path not in self.by_path and self.is_writable(resolved.path):
            self.by_path[resolved.path] = resolved


def git_directory(content: bytes, directory: bytes) -> bytes | None:
    """Return the path that a `.git` file names, made absolute from its directory; None if it names none."""
    word, colon, rest = content.strip().partition(b":")
    rest = rest.strip()
    if word.strip() != b"gitdir" or not colon or not rest or b"\0" in rest:
        return None
    return rest if rest.startswith(b"/") else join(directory, rest)


def refused(access: str, named: bytes, why: bytes) -> PlanRefused:
    """Return the refusal to enforce an access to what the policy calls `named`."""
    what = {READ: "read-only", DENY: "deny-read", WRITE: "writable"}[access]
    return PlanRefused(f"cannot enforce sandbox {what} path {display(named)} because {display(why)}")
