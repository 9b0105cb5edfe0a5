"""The mounts that put mask targets over missing paths."""

from __future__ import annotations

from execserver.sandbox.plan import READ, Mount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.masks.targets import Lease


def covers_of(lease: Lease | None) -> list[Mount]:
    """Return the mounts of a lease; each names the identity of its mask target, which is checked then."""
    if lease is None:
        return []
    # The lease holds them in the order of the missing paths.
    return [
        Mount(READ, missing.path, missing.path, held.identity)
        for missing, held in zip(lease.covered, lease.held, strict=False)
    ]
