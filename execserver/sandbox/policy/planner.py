"""Makes a sandbox plan from a policy and host facts.

Mounts are laid out shallow first: what grants, then what takes away below it, then what grants again.  Three
things go beyond the policy's words:

- A directory between a writable root and something protected below it is mounted onto itself ("pinned").  A
  mount point can be neither renamed nor removed, so nothing protected can be moved to a name without a rule.
- Symlinks on the way to granted paths are made where the sandbox root would not have them.
- Nothing of the host's comes into the sandbox root's own /dev and /proc, except for /dev/shm.
"""

from __future__ import annotations

from stat import S_IFDIR, S_IFLNK

from execserver.protocol.permissions import DENY, READ, WRITE
from execserver.sandbox.plan import (
    FILTER_NONE,
    FILTER_OPEN,
    FILTER_PROXY_ROUTED,
    FILTER_RESTRICTED,
    HIDDEN_DIRECTORY,
    HIDDEN_FILE,
    LINK,
    NETWORK_HOST,
    NETWORK_NONE,
    NETWORK_PROXY,
    PASSAGE,
    ROOT_EMPTY,
    ROOT_HOST,
    ROOT_READ_ONLY,
    ROOT_WRITABLE,
    Identity,
    Missing,
    Mount,
    SandboxPlan,
)
from execserver.sandbox.plan import READ as MOUNT_READ
from execserver.sandbox.plan import WRITE as MOUNT_WRITE
from execserver.sandbox.policy.facts import Facts
from execserver.sandbox.policy.glob_expansion import expand_patterns
from execserver.sandbox.policy.host import Host
from execserver.sandbox.policy.policy import METADATA_NAMES, Policy, is_below, join
from execserver.sandbox.policy.resolved_paths import (
    FROM_GIT_FILE,
    FROM_PATTERN,
    ResolvedPath,
    ResolvedPaths,
    refused,
)

_SHARED_MEMORY = b"/dev/shm"
# What a sandbox root's own /dev has, with the kind of mask for each.
_OWN_DEVICES = {
    **dict.fromkeys((b"/dev", b"/dev/pts", b"/dev/shm"), HIDDEN_DIRECTORY),
    **dict.fromkeys((b"/dev/null", b"/dev/zero", b"/dev/full"), HIDDEN_FILE),
    **dict.fromkeys((b"/dev/random", b"/dev/urandom", b"/dev/tty"), HIDDEN_FILE),
}

_TERMINAL_PARTS = (b"/dev/ptmx", b"/dev/console")
_ROOTS_OWN = (b"/dev", b"/proc")

# What a path in the sandbox root shows, besides READ and WRITE.
_NOTHING = "nothing"  # an empty root, or a mask
_OWN = "own"  # the sandbox root's own /dev or /proc


def plan_for_files(policy: Policy, host: Host, facts: Facts | None = None) -> SandboxPlan:
    """Return the plan for a file worker; `facts` collects the host facts that the plan depends on.

    Raises PlanRefused.  `facts` is complete then, too: the refusal holds as long as they do.
    """
    return _plan(policy, host, facts, NETWORK_NONE, FILTER_RESTRICTED)


def plan_for_process(
    policy: Policy, host: Host, facts: Facts | None = None, managed_network: bool = False
) -> SandboxPlan:
    """Return the plan for a command; `managed_network` is the request's `enforceManagedNetwork`.

    With ROOT_HOST files are not restricted: unless the network is NETWORK_PROXY, nothing but
    `syscall_filter` is to be applied then.  Raises PlanRefused as `plan_for_files` does.
    """
    if managed_network:
        return _plan(policy, host, facts, NETWORK_PROXY, FILTER_PROXY_ROUTED)
    if policy.network_enabled:
        # Keys, leases and the like concern every restricted policy; only full access has no filter.
        chosen = FILTER_NONE if policy.full_write else FILTER_OPEN
        return _plan(policy, host, facts, NETWORK_HOST, chosen)
    # Under full write access the filter alone takes the network away.
    network = NETWORK_HOST if policy.full_write else NETWORK_NONE
    return _plan(policy, host, facts, network, FILTER_RESTRICTED)


def _plan(policy: Policy, host: Host, facts: Facts | None, network: str, syscall_filter: str) -> SandboxPlan:
    facts = Facts() if facts is None else facts
    facts.stamps.update(policy.facts.stamps)
    facts.cacheable = facts.cacheable and policy.facts.cacheable
    if policy.full_write:
        return SandboxPlan(ROOT_HOST, network=network, syscall_filter=syscall_filter)
    places = ResolvedPaths(policy, facts.noting(host))
    globs = expand_patterns(places, host) if policy.globs else ()
    layout = _Layout(places)
    layout.build()
    return SandboxPlan(
        layout.root,
        mounts=layout.ordered_mounts(),
        missing=tuple([layout.missing[path] for path in sorted(layout.missing)]),
        globs=globs,
        network=network,
        syscall_filter=syscall_filter,
        writable=tuple(sorted(layout.writable)),
        readable=tuple(sorted(layout.readable)),
        read_only=tuple(sorted(layout.read_only)),
        denied=tuple(sorted(layout.denied)),
    )


class _Layout:
    """A sandbox root while it is being laid out; `_shown` says what is to be seen at each mount's path."""

    def __init__(self, places: ResolvedPaths) -> None:
        self.root = ROOT_EMPTY
        self.mounts: dict[bytes, Mount] = {}
        self.missing: dict[bytes, Missing] = {}
        self.writable: set[bytes] = set()
        self.readable: set[bytes] = set()
        self.read_only: set[bytes] = set()
        self.denied: set[bytes] = set()
        self._places = places
        self._host = places.host
        self._shown = {b"/": _NOTHING, b"/dev": _OWN, b"/proc": _OWN}

    def build(self) -> None:
        """Lay out all resolved paths, shallow first.  Raises PlanRefused."""
        places = sorted(self._places.by_path.values(), key=lambda resolved: _depth_first(resolved.path))
        for resolved in places:
            if resolved.path == b"/":
                self._lay_root(resolved)
            elif not resolved.exists():
                # To grant what does not exist grants nothing, but what is protected must not appear.
                if resolved.access != WRITE:
                    self._protect_missing(resolved)
            elif self._is_roots_own(resolved):
                continue
            elif resolved.access == WRITE:
                self._lay_writable(resolved)
            elif resolved.access == READ:
                self._lay_readable(resolved)
            else:
                self._lay_denied(resolved)
        for resolved in places:
            if resolved.access != DENY and resolved.links and resolved.exists():
                self._lay_links(resolved)
        # Only the literal directory that a pattern begins with: moved away, its files would match no more.
        for directory in self._places.pattern_roots:
            if self._shown_at(directory) == WRITE:
                self._pin_parents(join(directory, b"*"))

    def ordered_mounts(self) -> tuple[Mount, ...]:
        """Return the mounts, parents first."""
        # A mask above a granted path becomes a passage: nobody could reach that path otherwise.
        masks = {path for path, mount in self.mounts.items() if mount.kind == HIDDEN_DIRECTORY}
        if masks:
            for path, mount in self.mounts.items():
                if mount.kind in (MOUNT_READ, MOUNT_WRITE, LINK):
                    for mask in masks.intersection(_parents(path)):
                        self.mounts[mask].kind = PASSAGE
        return tuple([self.mounts[path] for path in sorted(self.mounts, key=_depth_first)])

    def _lay_root(self, resolved: ResolvedPath) -> None:
        if resolved.access == DENY:
            return
        self._shown[b"/"] = resolved.access
        if resolved.access == READ:
            self.root = ROOT_READ_ONLY
            self.readable.add(b"/")
            return
        self.root = ROOT_WRITABLE
        self.writable.add(b"/")
        self._protect_metadata(resolved)

    def _lay_writable(self, resolved: ResolvedPath) -> None:
        self._pin_parents(resolved.path)
        self._mount(MOUNT_WRITE, resolved.path, WRITE, resolved.found.stamp[:3])
        self.writable.add(resolved.path)
        if resolved.is_directory():
            self._protect_metadata(resolved)

    def _lay_readable(self, resolved: ResolvedPath) -> None:
        shown = self._shown_at(resolved.path)
        if shown == WRITE:
            self._pin_parents(resolved.path)
            self.read_only.add(resolved.path)
        else:
            self.readable.add(resolved.path)
        if shown != READ:  # else it is read-only already
            self._mount(MOUNT_READ, resolved.path, READ, resolved.found.stamp[:3])

    def _lay_denied(self, resolved: ResolvedPath) -> None:
        shown = self._shown_at(resolved.path)
        if shown not in (READ, WRITE):
            return  # it is not there to be seen
        self.denied.add(resolved.path)
        if shown == WRITE and resolved.origin != FROM_PATTERN:
            # What a pattern matches is matched again under its new name; pins would cost EXDEV for renames
            # into and out of many directories.
            self._pin_parents(resolved.path)
        kind = HIDDEN_DIRECTORY if resolved.is_directory() else HIDDEN_FILE
        self._mount(kind, resolved.path, _NOTHING, resolved.found.stamp[:3])

    def _is_roots_own(self, resolved: ResolvedPath) -> bool:
        """Lay out a path in the sandbox root's own /dev or /proc; return False for any other path."""
        path = resolved.path
        if not path.startswith(_ROOTS_OWN):
            return False
        shown = self._shown_at(path)
        if path == _SHARED_MEMORY or is_below(path, _SHARED_MEMORY):
            # A rule can bring in the host's /dev/shm; from then on it is treated as any path of the host.
            if resolved.access != DENY or shown in (READ, WRITE):
                return False
        elif not any(path == own or is_below(path, own) for own in _ROOTS_OWN):
            return False
        if resolved.access == DENY and shown == _OWN:
            self._hide_own(resolved)
        return True

    def _hide_own(self, resolved: ResolvedPath) -> None:
        path, kind = resolved.path, _OWN_DEVICES.get(resolved.path)
        if path == b"/proc" or is_below(path, b"/proc"):
            self._check_process_path(resolved)
            kind = HIDDEN_DIRECTORY if resolved.is_directory() else HIDDEN_FILE
        elif path in _TERMINAL_PARTS:
            raise refused(DENY, resolved.named, b"every terminal needs it")
        if kind is not None:
            self._mount(kind, path, _NOTHING, None)
            self.denied.add(path)

    def _check_process_path(self, resolved: ResolvedPath) -> None:
        """Refuse to mask what belongs to a process: inside, the same path belongs to another process."""
        names = resolved.path.split(b"/")
        if len(names) > 2 and (names[2].isdigit() or names[2] in (b"self", b"thread-self")):
            raise refused(DENY, resolved.named, b"it belongs to a process of this host")

    def _protect_metadata(self, root: ResolvedPath) -> None:
        """Make the metadata names at the top of a writable directory read-only, except those with a rule."""
        for name in METADATA_NAMES:
            path = join(root.path, name)
            if path in self._places.by_path:
                continue
            try:
                stamp = self._host.stamp(path)
            except OSError as error:
                raise refused(READ, path, b"it cannot be looked at") from error
            if stamp is None:
                self.missing[path] = Missing(path, root.found.stamp[:3], True, True)
            elif stamp[2] == S_IFLNK:  # no mount can protect the symlink itself
                raise refused(READ, path, b"it crosses writable symlink " + path)
            else:
                self._mount(MOUNT_READ, path, READ, stamp[:3])
            self.read_only.add(path)

    def _protect_missing(self, resolved: ResolvedPath) -> None:
        """Keep everybody inside from making what is protected: its first missing name gets a mask target."""
        found = resolved.found
        if found.blocked or self._shown_at(found.path) != WRITE:
            return  # nobody inside could make it anyway
        first = join(found.path, found.rest[0])
        self._pin_parents(first)
        if found.stamp[2] != S_IFDIR:
            # A file is where a directory would have to be.  It stays, since its parents are pinned.
            return
        metadata = found.rest[0] in METADATA_NAMES and found.path in self.writable
        known = self.missing.get(first)
        directory = metadata or resolved.origin == FROM_GIT_FILE or (known is not None and known.directory)
        self.missing[first] = Missing(first, found.stamp[:3], directory, metadata)
        (self.denied if resolved.access == DENY else self.read_only).add(first)

    def _pin_parents(self, path: bytes) -> None:
        """Mount the directories above a path onto themselves, up to the nearest that is mounted already.

        Else a command could move one of them, and what is protected in it, to a name without a rule.
        """
        if self._shown_at(path.rpartition(b"/")[0] or b"/") != WRITE:
            return
        for parent in _parents(path):
            if parent in self._shown:
                return
            stamp = self._host.stamp(parent)
            if stamp is not None:
                self._mount(MOUNT_WRITE, parent, WRITE, stamp[:3])

    def _lay_links(self, resolved: ResolvedPath) -> None:
        if self._shown_at(resolved.path) not in (READ, WRITE):
            return
        # The policy's paths must work inside, for instance `/bin` or a workspace that is a symlink.
        for link, text in resolved.links:
            if self._shown_at(link) == _NOTHING:
                self.mounts[link] = Mount(LINK, link, text)

    def _mount(self, kind: str, path: bytes, shows: str, identity: Identity | None) -> None:
        source = path if kind in (MOUNT_READ, MOUNT_WRITE) else b""
        self.mounts[path] = Mount(kind, path, source, identity)
        self._shown[path] = shows

    def _shown_at(self, path: bytes) -> str:
        shown = self._shown
        while path not in shown:
            path = path.rpartition(b"/")[0] or b"/"
        return shown[path]


def _depth_first(path: bytes) -> tuple[int, bytes]:
    return (path.count(b"/"), path)


def _parents(path: bytes) -> list[bytes]:
    """Return the directories above a path, deepest first, without `/`."""
    found = []
    path = path.rpartition(b"/")[0]
    while path:
        found.append(path)
        path = path.rpartition(b"/")[0]
    return found
