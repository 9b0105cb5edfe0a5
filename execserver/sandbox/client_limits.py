"""Lays the limits of whoever asks over a sandbox plan: what comes out allows what both allow, never more.

Limits are laid over the plan and not over the sandbox context, because only a plan has real places: every
symlink in a policy is resolved there, and each mount names the very object it binds.  So a folder of the
limits counts only where no symlink leads to it: else whoever can make a symlink below a granted folder could
have another folder granted by narrowing a token to it.
"""

from __future__ import annotations

from stat import S_IFDIR

from execserver.sandbox.plan import (
    FILTER_NONE,
    FILTER_OPEN,
    FILTER_RESTRICTED,
    NETWORK_NONE,
    READ,
    ROOT_HOST,
    ROOT_READ_ONLY,
    ROOT_WRITABLE,
    WRITE,
    Identity,
    Mount,
    SandboxPlan,
)
from execserver.sandbox.policy.host import Host, walk

_ROOTS_OWN = (b"/dev", b"/proc")


class Limits:
    """What may be had at most: writing below `roots` only (None: wherever the plan allows), the network."""

    __slots__ = ("network", "roots")

    def __init__(self, roots: tuple[bytes, ...] | None = None, network: bool = True) -> None:
        self.roots = roots
        self.network = network

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Limits) and (self.roots, self.network) == (other.roots, other.network)

    def __hash__(self) -> int:
        return hash((self.roots, self.network))

    def __repr__(self) -> str:
        return f"Limits(roots={self.roots!r}, network={self.network})"


def lay(limits: Limits, plan: SandboxPlan, host: Host) -> SandboxPlan:
    """Return the plan with everything taken away that the limits do not allow.

    It always has a sandbox root of its own: without one a command could do whatever its user may, for
    instance leave something that is run later without limits.  Raises OSError.
    """
    fields = {name: getattr(plan, name) for name in plan.__slots__}
    if plan.root == ROOT_HOST:
        fields["root"] = ROOT_WRITABLE
        fields["writable"] = (b"/",)
        if plan.syscall_filter == FILTER_NONE:
            fields["syscall_filter"] = FILTER_OPEN  # as for every plan with a root and the network
        elif plan.syscall_filter == FILTER_RESTRICTED:
            fields["network"] = NETWORK_NONE  # the filter alone would leave it the host's
    if not limits.network:
        fields["network"], fields["syscall_filter"] = NETWORK_NONE, FILTER_RESTRICTED
    whole = SandboxPlan(**fields)
    return whole if limits.roots is None else _writing_below(limits.roots, whole, host)


def _writing_below(roots: tuple[bytes, ...], plan: SandboxPlan, host: Host) -> SandboxPlan:
    granted = _granted(roots, plan, host)

    def within(path: bytes) -> bool:
        return any(_is_at_or_below(path, root) for root in granted)

    if within(b"/"):
        return plan
    fields = {name: getattr(plan, name) for name in plan.__slots__}
    if plan.root == ROOT_WRITABLE:
        fields["root"] = ROOT_READ_ONLY
    fields["mounts"] = _mounts(plan, granted)
    # Where nobody inside can make anything, nothing needs to be kept from being made.
    fields["missing"] = tuple([missing for missing in plan.missing if within(missing.path)])
    taken = tuple([path for path in plan.writable if not within(path)])
    fields["writable"] = tuple([path for path in plan.writable if within(path)])
    fields["readable"] = (*plan.readable, *(path for path in taken if path not in plan.readable))
    # A rule counts more than a deny pattern above it: with patterns no rule is added, and none removed.
    if not plan.globs:
        fields["writable"] = tuple(sorted({*fields["writable"], *granted}))
        fields["read_only"] = tuple([path for path in plan.read_only if within(path)])
    return SandboxPlan(**fields)


def _granted(roots: tuple[bytes, ...], plan: SandboxPlan, host: Host) -> dict[bytes, Identity]:
    """Return the folders among the roots, or below them, that the plan lets be written, and their ids."""
    found = {}
    for root in roots:
        place = walk(host, root)
        if place.links or place.rest or place.path != root or place.stamp[2] != S_IFDIR:
            continue
        if _is_writable(plan, root):
            found[root] = place.stamp[:3]
        # What the plan grants below a root that is not writable itself.
        for mount in plan.mounts:
            if mount.kind == WRITE and mount.identity and _is_at_or_below(mount.path, root):
                found[mount.path] = mount.identity
    return found


def _mounts(plan: SandboxPlan, granted: dict[bytes, Identity]) -> tuple[Mount, ...]:
    """Return the mounts: granted ones as they are, others read-only, and one for each other root."""
    kept = []
    for mount in plan.mounts:
        taken = mount.kind == WRITE and not any(_is_at_or_below(mount.path, root) for root in granted)
        kept.append(Mount(READ, mount.path, mount.source, mount.identity) if taken else mount)
    there = {mount.path for mount in kept}
    added = [Mount(WRITE, root, root, identity) for root, identity in granted.items() if root not in there]
    return tuple(sorted([*kept, *added], key=lambda mount: (mount.path.count(b"/"), mount.path)))


def _is_writable(plan: SandboxPlan, path: bytes) -> bool:
    above = [mount for mount in plan.mounts if _is_at_or_below(path, mount.path)]
    if above:
        return max(above, key=lambda mount: len(mount.path)).kind == WRITE
    if any(_is_at_or_below(path, own) for own in _ROOTS_OWN):
        return False  # the sandbox root's own, not the host's folder
    return plan.root == ROOT_WRITABLE


def _is_at_or_below(path: bytes, folder: bytes) -> bool:
    return path == folder or path.startswith(folder.rstrip(b"/") + b"/")
