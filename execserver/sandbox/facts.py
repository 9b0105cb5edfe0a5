"""What a plan was made from, so that it can be told cheaply whether it would be made again.

The facts of a plan are every place whose change could change the plan: roots, links on the way to them,
protected and denied paths, metadata names, and the absence of each of these.  Directories merely passed
through are not among them, since a change there shows in what lies below.
"""

from __future__ import annotations

from execserver.sandbox.host import Host, Stamp


class Facts:
    """The facts of one plan.  `cacheable` is False where only a new plan can tell, as with deny patterns."""

    __slots__ = ("cacheable", "stamps")

    def __init__(self) -> None:
        self.cacheable = True
        self.stamps: dict[bytes, Stamp | None] = {}

    def note(self, path: bytes, stamp: Stamp | None) -> None:
        """Add what was found at a path, a link there not followed."""
        self.stamps[path] = stamp

    def hold(self, host: Host) -> bool:
        """Tell whether the policy and the plan would come out the same now.

        What cannot be looked at counts as changed.
        """
        if not self.cacheable:
            return False
        look = host.stamp
        try:
            return all(look(path) == stamp for path, stamp in self.stamps.items())
        except OSError:
            return False
