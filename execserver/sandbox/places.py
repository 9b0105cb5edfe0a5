"""A policy's rules at the places they really are: where each path leads once all links are followed.

A view is made of directories and files, not of names, so every rule is moved to the link-free path of what it
names.  Rules of different names that meet at one place leave the least access.  A rule that a link decides
which the sandbox itself could replace is refused: the next plan would follow the replacement.
"""

from __future__ import annotations

from stat import S_IFDIR, S_IFLNK, S_IFREG

from execserver.protocol.paths import display
from execserver.protocol.permissions import DENY, READ, WRITE
from execserver.sandbox.host import Found, Host, Stamp, walk
from execserver.sandbox.plan import PlanRefused
from execserver.sandbox.policy import (
    METADATA_NAMES,
    PLATFORM_ROOTS,
    Policy,
    Rule,
    first_name_below,
    is_below,
    join,
)

_RANK = {DENY: 0, READ: 1, WRITE: 2}
_GITDIR_BYTES = 8192  # more than the longest path

# Where a place comes from.
FROM_RULE = "rule"
FROM_PLATFORM = "platform default"
FROM_GIT_FILE = "git directory"
FROM_PATTERN = "pattern"


class Place:
    """One link-free path and the access to it.

    `found` tells what is there and `named` what the policy calls it; `links` are those on the way, each with
    its text.  `rule` is the policy's, `pattern` the deny pattern that matched.
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
        """Tell whether something is there that can be shown, hidden or protected."""
        return not self.found.rest

    def is_directory(self) -> bool:
        """Tell whether a directory is there."""
        return not self.found.rest and self.found.stamp[2] == S_IFDIR


class Places:
    """The places of one policy on one host.

    `by_path` are all of them, `pattern_roots` the directories that deny patterns are about.  Raises
    PlanRefused for what no view can enforce.
    """

    def __init__(self, policy: Policy, host: Host) -> None:
        self.policy = policy
        self.host = host
        self.by_path: dict[bytes, Place] = {}
        self.pattern_roots: set[bytes] = set()
        self._plain: dict[bytes, Stamp] = {}
        named: list[Place] = []
        for rule in policy.rules.values():
            for spelled in rule.spellings:
                place = Place(rule.access, self._walk(spelled), spelled, rule=rule)
                named.append(place)
                self._add(place)
        for place in named:
            if place.links:
                self._check_links(place, named)
            if place.found.blocked and place.access != WRITE and self.is_writable(place.found.path):
                raise refused(place.access, place.named, b"it cannot be looked at")
        if policy.minimal:
            self._add_platform_roots()
        for place in [place for place in named if place.access == WRITE]:
            self._add_git_directory(place)

    def deciding(self, path: bytes) -> Place | None:
        """Return the deepest place at or above a link-free path."""
        places = self.by_path
        while True:
            place = places.get(path)
            if place is not None or path == b"/":
                return place
            path = path.rpartition(b"/")[0] or b"/"

    def access(self, path: bytes) -> str:
        """Return the access to a link-free path."""
        place = self.deciding(path)
        if place is None:
            return DENY
        if place.access == WRITE and first_name_below(place.path, path) in METADATA_NAMES:
            return READ
        return place.access

    def is_writable(self, path: bytes) -> bool:
        """Tell whether the sandbox may change what is at a link-free path."""
        return self.access(path) == WRITE

    def add_denied(self, found: Found, named: bytes, pattern: bytes) -> None:
        """Deny a place that a pattern led to."""
        self._add(Place(DENY, found, named, FROM_PATTERN, pattern=pattern))

    def writable_link(self, found: Found) -> bytes | None:
        """Return a link on the way to a place that the sandbox could replace."""
        for link, _ in found.links:
            # Its directory counts: no mount can protect a link itself.
            if self.is_writable(link.rpartition(b"/")[0] or b"/"):
                return link
        return None

    def _walk(self, path: bytes) -> Found:
        """Follow a path; below a directory that was reached without links only its last name."""
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

    def _add(self, place: Place) -> None:
        known = self.by_path.get(place.path)
        if known is None:
            self.by_path[place.path] = place
            return
        kept, other = (known, place) if _RANK[known.access] <= _RANK[place.access] else (place, known)
        kept.links += tuple(link for link in other.links if link not in kept.links)
        self.by_path[place.path] = kept

    def _check_links(self, place: Place, named: list[Place]) -> None:
        link = self.writable_link(place.found)
        if link is None or (place.access == WRITE and self._writable_anyway(place, named)):
            return
        raise refused(place.access, place.named, b"it crosses writable symlink " + link)

    def _writable_anyway(self, place: Place, named: list[Place]) -> bool:
        """Tell whether the place could be written without this rule, so that it gives nothing away."""
        if self.access(place.path) != WRITE or not place.exists():
            # Nothing is granted.
            return True
        if any(other.path == place.path and not other.links and other.access == WRITE for other in named):
            return True
        parent = place.path.rpartition(b"/")[0] or b"/"
        return place.path != b"/" and self.is_writable(parent)

    def _add_platform_roots(self) -> None:
        if self.access(b"/") != DENY:
            return
        for root in PLATFORM_ROOTS:
            place = Place(READ, walk(self.host, root), root, FROM_PLATFORM)
            if not place.exists() or self.writable_link(place.found) is not None:
                continue
            known = self.deciding(place.path)
            if known is None or (known.path == b"/" and known.access == DENY):
                self.by_path[place.path] = place
            elif known.access != DENY:
                known.links += tuple(link for link in place.links if link not in known.links)

    def _add_git_directory(self, root: Place) -> None:
        """Protect the directory that a `.git` file at the top of a writable root points to."""
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
        place = Place(READ, walk(self.host, target), target, FROM_GIT_FILE)
        link = self.writable_link(place.found)
        if link is not None:
            raise refused(READ, target, b"it crosses writable symlink " + link)
        if place.found.blocked and self.is_writable(place.found.path):
            raise refused(READ, target, b"it cannot be looked at")
        # A pointer at a workspace or above it names no git directory.
        holds_root = any(
            other.access == WRITE and (other.path == place.path or is_below(other.path, place.path))
            for other in self.by_path.values()
        )
        if not holds_root and place.path not in self.by_path and self.is_writable(place.path):
            self.by_path[place.path] = place


def git_directory(content: bytes, directory: bytes) -> bytes | None:
    """Return the path that a `.git` file names, which may be relative to its directory."""
    word, colon, rest = content.strip().partition(b":")
    rest = rest.strip()
    if word.strip() != b"gitdir" or not colon or not rest or b"\0" in rest:
        return None
    return rest if rest.startswith(b"/") else join(directory, rest)


def refused(access: str, named: bytes, why: bytes) -> PlanRefused:
    """Return the refusal to enforce an access to what the policy names so."""
    what = {READ: "read-only", DENY: "deny-read", WRITE: "writable"}[access]
    return PlanRefused(f"cannot enforce sandbox {what} path {display(named)} because {display(why)}")
