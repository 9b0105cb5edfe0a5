"""Expands deny patterns: every file that a pattern matches now becomes a denied path.

Commands cannot be watched, so what a pattern matches is masked when the sandbox root is built.  Names with a
leading dot count.  Symlinks are not followed on the way, but the target of a matched symlink is denied, too.
A matched directory is masked with everything in it, except what a rule grants below it.  Patterns that begin
at `/` are looked for below the project roots only; the wire contract does not expand them at all.

A walk has limits.  At a limit the plan is refused: what was not seen could not be masked.
"""

from __future__ import annotations

import errno
from stat import S_IFDIR

from execserver.protocol.paths import display
from execserver.protocol.permissions import DENY
from execserver.sandbox.plan import PlanRefused
from execserver.sandbox.policy.globs import Glob, compile_glob, compile_patterns
from execserver.sandbox.policy.host import Host, walk
from execserver.sandbox.policy.policy import is_below, join
from execserver.sandbox.policy.resolved_paths import ResolvedPaths, refused

MATCH_LIMIT = 8192  # of the patterns that begin at one directory; the wire contract's
ENTRY_LIMIT = 200_000  # names looked at for one plan
TIME_LIMIT_S = 3.0
_NO_DEPTH = 1 << 30
_ROOTS_OWN = (b"/dev", b"/proc")
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR})

_Positions = list[tuple[Glob, frozenset[int]]]


def expand_patterns(places: ResolvedPaths, host: Host) -> tuple[bytes, ...]:
    """Deny what the policy's patterns match now; return the patterns, and each with its symlinks resolved.

    Raises PlanRefused at a limit, or where a symlink that the sandbox could replace decides.
    """
    policy = places.policy
    starts: dict[bytes, list[Glob]] = {}
    texts = set(policy.globs)
    for pattern in policy.globs:
        for glob in compile_glob(pattern):
            found = walk(host, glob.prefix)
            link = places.writable_link(found)
            if link is not None:
                raise refused(DENY, glob.text, b"it crosses writable symlink " + link)
            moved = glob if found.whole() == glob.prefix else glob.moved(found.whole())
            texts.add(moved.text)
            if not found.rest:
                starts.setdefault(moved.prefix, []).append(moved)
                places.pattern_roots.add(moved.prefix)
    _deny_granted(places, texts)
    walker = _Walker(places, host, policy.glob_scan_max_depth or _NO_DEPTH)
    for root, globs in sorted(starts.items()):
        if root != b"/":
            walker.walk_from(root, root, globs)
            continue
        # For commands such a pattern holds here only; file workers match it against every path.
        for project_root in policy.project_roots:
            real = host.realpath(project_root)
            if real is not None:
                walker.walk_from(root, real, globs)
    for path, pattern in walker.matches:
        _deny(places, host, path, pattern)
    return tuple(sorted(texts))


def _deny_granted(places: ResolvedPaths, texts: set[bytes]) -> None:
    """Deny granted paths that a pattern matches."""
    patterns = compile_patterns(texts)
    for path, resolved in list(places.by_path.items()):
        matched = patterns.deepest(path) if resolved.access != DENY else None
        if matched is not None and matched[0] == path:
            places.add_denied(resolved.found, path, matched[1])


def _deny(places: ResolvedPaths, host: Host, path: bytes, pattern: bytes) -> None:
    """Deny what a match leads to, but nothing in /dev and /proc: the sandbox root has its own."""
    found = walk(host, path)
    if found.rest or any(found.path == own or is_below(found.path, own) for own in _ROOTS_OWN):
        return
    if found.path == b"/":
        raise refused(DENY, path, b"it is a link to /")
    places.add_denied(found, path, pattern)


class _Walker:
    """Walks directories and collects matches, each with its pattern."""

    def __init__(self, places: ResolvedPaths, host: Host, depth: int) -> None:
        self.matches: list[tuple[bytes, bytes]] = []
        self._places = places
        self._host = host
        self._depth = depth
        self._entries = 0
        self._deadline = host.now() + TIME_LIMIT_S

    def walk_from(self, root: bytes, start: bytes, globs: list[Glob]) -> None:
        """Match globs, whose prefix is `root`, from the directory `start` at or below it.

        Below a denied directory only paths that are granted again are walked.  Raises PlanRefused.
        """
        matched_before = len(self.matches)
        granted = sorted(
            path
            for path, resolved in self._places.by_path.items()
            if resolved.access != DENY and resolved.is_directory() and is_below(path, start)
        )
        walked: set[bytes] = set()
        for directory in [start, *granted]:
            if self._places.access(directory) == DENY or directory in walked:
                continue
            positions = _positions_at(globs, root, directory)
            depth = directory.count(b"/") - start.count(b"/")
            todo = [(directory, positions, depth)]
            while todo:
                here, at, level = todo.pop()
                walked.add(here)
                todo += self._directory(here, at, level, walked)
                if len(self.matches) - matched_before > MATCH_LIMIT:
                    raise PlanRefused(
                        f"unreadable glob expansion for {display(root)} matched more than {MATCH_LIMIT} paths"
                    )

    def _directory(
        self, directory: bytes, positions: _Positions, level: int, walked: set[bytes]
    ) -> list[tuple[bytes, _Positions, int]]:
        """Match the names in a directory; return the directories to walk next."""
        if not positions or level >= self._depth or directory in _ROOTS_OWN:
            return []
        try:
            names = self._host.scan(directory)
        except OSError as error:
            if error.errno not in _GONE:
                # It cannot be listed now, so it is denied as a whole: later it must not be readable either.
                self.matches.append((directory, positions[0][0].text))
            return []
        self._count(len(names), directory)
        further = []
        for name, kind in names:
            path = join(directory, name)
            after, pattern = _step(positions, name)
            if pattern:
                self.matches.append((path, pattern))
            elif kind == S_IFDIR and after and path not in walked and not self._is_denied(path):
                further.append((path, after, level + 1))
        return further

    def _is_denied(self, path: bytes) -> bool:
        resolved = self._places.by_path.get(path)
        return resolved is not None and resolved.access == DENY

    def _count(self, names: int, directory: bytes) -> None:
        self._entries += names
        if self._entries > ENTRY_LIMIT or self._host.now() > self._deadline:
            raise PlanRefused(f"unreadable glob expansion for {display(directory)} takes too long")


def _positions_at(globs: list[Glob], root: bytes, directory: bytes) -> _Positions:
    """Return the positions of globs with the prefix `root` at a directory at or below it."""
    positions = [(glob, glob.start()) for glob in globs]
    for name in directory[len(root) :].split(b"/"):
        if name:
            positions, _ = _step(positions, name)
    return positions


def _step(positions: _Positions, name: bytes) -> tuple[_Positions, bytes]:
    """Return the positions after one more name, and the text of a pattern that matches there."""
    text = name.decode("utf-8", "surrogateescape")
    after, pattern = [], b""
    for glob, at in positions:
        moved, matched = glob.step(at, text)
        if matched:
            pattern = glob.text
        if moved:
            after.append((glob, moved))
    return after, pattern
