"""From a policy and the host's facts to the plan of a view.

Mounts are laid shallow first: what grants, then what takes away below it, then what grants again.  Three
things go beyond the policy's words: a directory between a writable root and something protected below it is
mounted onto itself, because what is a mount point cannot be renamed or removed, and so nothing protected can
be carried to another name; the links that granted paths lead over are made where the view would not have
them; and nothing of the host's comes into the view's own /dev and /proc, but /dev/shm.
"""

from __future__ import annotations

from stat import S_IFDIR, S_IFLNK

from execserver.protocol.permissions import DENY, READ, WRITE
from execserver.sandbox.facts import Facts
from execserver.sandbox.glob_expansion import expand_patterns
from execserver.sandbox.host import Host
from execserver.sandbox.places import FROM_GIT_FILE, FROM_PATTERN, Place, Places, refused
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
    ViewPlan,
)
from execserver.sandbox.plan import READ as MOUNT_READ
from execserver.sandbox.plan import WRITE as MOUNT_WRITE
from execserver.sandbox.policy import METADATA_NAMES, Policy, is_below, join

_SHARED_MEMORY = b"/dev/shm"
# What a view's own /dev has, by the way it is hidden.
_OWN_DEVICES = {
    **dict.fromkeys((b"/dev", b"/dev/pts", b"/dev/shm"), HIDDEN_DIRECTORY),
    **dict.fromkeys((b"/dev/null", b"/dev/zero", b"/dev/full"), HIDDEN_FILE),
    **dict.fromkeys((b"/dev/random", b"/dev/urandom", b"/dev/tty"), HIDDEN_FILE),
}

_TERMINAL_PARTS = (b"/dev/ptmx", b"/dev/console")
_VIEWS_OWN = (b"/dev", b"/proc")

# What a path of the view shows; READ and WRITE besides.
_NOTHING = "nothing"  # an empty root, or a mask
_OWN = "own"  # the view's own /dev or /proc


def plan_for_files(policy: Policy, host: Host, facts: Facts | None = None) -> ViewPlan:
    """Return the view of a file worker.  `facts` collects what the policy and the plan rest on.

    Raises PlanRefused; `facts` is complete then, too, and the refusal stands while it holds.
    """
    return _plan(policy, host, facts, NETWORK_NONE, FILTER_RESTRICTED)


def plan_for_process(
    policy: Policy, host: Host, facts: Facts | None = None, managed_network: bool = False
) -> ViewPlan:
    """Return the view of a command; `managed_network` is the request's `enforceManagedNetwork`.

    With ROOT_HOST files are not restricted; unless the network is NETWORK_PROXY nothing but `syscall_filter`
    is to be applied then.  Raises PlanRefused as `plan_for_files` does.
    """
    if managed_network:
        return _plan(policy, host, facts, NETWORK_PROXY, FILTER_PROXY_ROUTED)
    if policy.network_enabled:
        chosen = FILTER_NONE if policy.full_write else FILTER_OPEN
        return _plan(policy, host, facts, NETWORK_HOST, chosen)
    network = NETWORK_HOST if policy.full_write else NETWORK_NONE
    return _plan(policy, host, facts, network, FILTER_RESTRICTED)


def _plan(policy: Policy, host: Host, facts: Facts | None, network: str, syscall_filter: str) -> ViewPlan:
    facts = Facts() if facts is None else facts
    facts.stamps.update(policy.facts.stamps)
    facts.cacheable = facts.cacheable and policy.facts.cacheable
    if policy.full_write:
        return ViewPlan(ROOT_HOST, network=network, syscall_filter=syscall_filter)
    places = Places(policy, facts.noting(host))
    globs = expand_patterns(places, host) if policy.globs else ()
    view = _View(places)
    view.build()
    return ViewPlan(
        view.root,
        mounts=view.ordered_mounts(),
        missing=tuple([view.missing[path] for path in sorted(view.missing)]),
        globs=globs,
        network=network,
        syscall_filter=syscall_filter,
        writable=tuple(sorted(view.writable)),
        readable=tuple(sorted(view.readable)),
        read_only=tuple(sorted(view.read_only)),
        denied=tuple(sorted(view.denied)),
    )


class _View:
    """The view while it is being laid out; `_shown` tells what each mount's path shows."""

    def __init__(self, places: Places) -> None:
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
        """Lay out all places, shallow first.  Raises PlanRefused."""
        places = sorted(self._places.by_path.values(), key=lambda place: _depth_first(place.path))
        for place in places:
            if place.path == b"/":
                self._lay_root(place)
            elif not place.exists():
                if place.access != WRITE:
                    self._protect_missing(place)
            elif self._is_views_own(place):
                continue
            elif place.access == WRITE:
                self._lay_writable(place)
            elif place.access == READ:
                self._lay_readable(place)
            else:
                self._lay_denied(place)
        for place in places:
            if place.access != DENY and place.links and place.exists():
                self._lay_links(place)
        for directory in self._places.pattern_roots:
            if self._shown_at(directory) == WRITE:
                self._pin_parents(join(directory, b"*"))

    def ordered_mounts(self) -> tuple[Mount, ...]:
        """Return the mounts, parents first; a mask with something below it becomes a passage."""
        masks = {path for path, mount in self.mounts.items() if mount.kind == HIDDEN_DIRECTORY}
        if masks:
            for path, mount in self.mounts.items():
                if mount.kind in (MOUNT_READ, MOUNT_WRITE, LINK):
                    for mask in masks.intersection(_parents(path)):
                        self.mounts[mask].kind = PASSAGE
        return tuple([self.mounts[path] for path in sorted(self.mounts, key=_depth_first)])

    def _lay_root(self, place: Place) -> None:
        if place.access == DENY:
            return
        self._shown[b"/"] = place.access
        if place.access == READ:
            self.root = ROOT_READ_ONLY
            self.readable.add(b"/")
            return
        self.root = ROOT_WRITABLE
        self.writable.add(b"/")
        self._protect_metadata(place)

    def _lay_writable(self, place: Place) -> None:
        self._pin_parents(place.path)
        self._mount(MOUNT_WRITE, place.path, WRITE, place.found.stamp[:3])
        self.writable.add(place.path)
        if place.is_directory():
            self._protect_metadata(place)

    def _lay_readable(self, place: Place) -> None:
        shown = self._shown_at(place.path)
        if shown == WRITE:
            self._pin_parents(place.path)
            self.read_only.add(place.path)
        else:
            self.readable.add(place.path)
        if shown != READ:
            self._mount(MOUNT_READ, place.path, READ, place.found.stamp[:3])

    def _lay_denied(self, place: Place) -> None:
        shown = self._shown_at(place.path)
        if shown not in (READ, WRITE):
            return
        self.denied.add(place.path)
        if shown == WRITE and place.origin != FROM_PATTERN:
            # A match that is carried away is matched again, and the pin would split many trees.
            self._pin_parents(place.path)
        kind = HIDDEN_DIRECTORY if place.is_directory() else HIDDEN_FILE
        self._mount(kind, place.path, _NOTHING, place.found.stamp[:3])

    def _is_views_own(self, place: Place) -> bool:
        """Deal with a place in the view's own /dev or /proc; tell whether that is all there is to do."""
        path = place.path
        if not path.startswith(_VIEWS_OWN):
            return False
        shown = self._shown_at(path)
        if path == _SHARED_MEMORY or is_below(path, _SHARED_MEMORY):
            if place.access != DENY or shown in (READ, WRITE):
                return False
        elif not any(path == own or is_below(path, own) for own in _VIEWS_OWN):
            return False
        if place.access == DENY and shown == _OWN:
            self._hide_own(place)
        return True

    def _hide_own(self, place: Place) -> None:
        path, kind = place.path, _OWN_DEVICES.get(place.path)
        if path == b"/proc" or is_below(path, b"/proc"):
            self._check_process_path(place)
            kind = HIDDEN_DIRECTORY if place.is_directory() else HIDDEN_FILE
        elif path in _TERMINAL_PARTS:
            raise refused(DENY, place.named, b"every terminal needs it")
        if kind is not None:
            self._mount(kind, path, _NOTHING, None)
            self.denied.add(path)

    def _check_process_path(self, place: Place) -> None:
        """Refuse to hide what belongs to a process: in the view the same path belongs to another one."""
        names = place.path.split(b"/")
        if len(names) > 2 and (names[2].isdigit() or names[2] in (b"self", b"thread-self")):
            raise refused(DENY, place.named, b"it belongs to a process of this host")

    def _protect_metadata(self, root: Place) -> None:
        """Close the metadata names at the top of a writable directory, but for those with a rule."""
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
            elif stamp[2] == S_IFLNK:
                raise refused(READ, path, b"it crosses writable symlink " + path)
            else:
                self._mount(MOUNT_READ, path, READ, stamp[:3])
            self.read_only.add(path)

    def _protect_missing(self, place: Place) -> None:
        """See to it that nobody can make what is protected, by its first missing name."""
        found = place.found
        if found.blocked or self._shown_at(found.path) != WRITE:
            return
        first = join(found.path, found.rest[0])
        self._pin_parents(first)
        if found.stamp[2] != S_IFDIR:
            # A file stands where a directory would have to be; pinned, it stays.
            return
        metadata = found.rest[0] in METADATA_NAMES and found.path in self.writable
        known = self.missing.get(first)
        directory = metadata or place.origin == FROM_GIT_FILE or (known is not None and known.directory)
        self.missing[first] = Missing(first, found.stamp[:3], directory, metadata)
        (self.denied if place.access == DENY else self.read_only).add(first)

    def _pin_parents(self, path: bytes) -> None:
        """Mount the directories above a path onto themselves, up to the one whose mount shows them."""
        if self._shown_at(path.rpartition(b"/")[0] or b"/") != WRITE:
            return
        for parent in _parents(path):
            if parent in self._shown:
                return
            stamp = self._host.stamp(parent)
            if stamp is not None:
                self._mount(MOUNT_WRITE, parent, WRITE, stamp[:3])

    def _lay_links(self, place: Place) -> None:
        if self._shown_at(place.path) not in (READ, WRITE):
            return
        for link, text in place.links:
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
