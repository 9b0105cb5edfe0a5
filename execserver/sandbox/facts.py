"""What a plan was made from, so that it can be told cheaply whether it would be made again.

The facts of a plan are what was found at every place that was looked at: roots and the directories and links
on the way to them, protected and denied paths, metadata names, git directories, and the absence of each.
"""

from __future__ import annotations

from execserver.sandbox.host import Host, Stamp


class Facts:
    """The facts of one plan.  `cacheable` is False where only a new plan can tell, as with deny patterns."""

    __slots__ = ("cacheable", "stamps")

    def __init__(self) -> None:
        self.cacheable = True
        self.stamps: dict[bytes, Stamp | None] = {}

    def noting(self, host: Host) -> Host:
        """Return the host as one that looks at each place once only and notes what it found."""
        return _NotingHost(host, self)

    def hold(self, host: Host) -> bool:
        """Tell whether the policy and the plan would come out the same now.

        Also False if something cannot be looked at.
        """
        return self.cacheable and host.shows(self.stamps)


class _NotingHost(Host):
    """A host whose answers become facts; what cannot be looked at makes the facts worthless."""

    def __init__(self, host: Host, facts: Facts) -> None:
        super().__init__(host.tmpdir)
        self._host = host
        self._facts = facts
        self._stamps = facts.stamps

    def stamp(self, path: bytes) -> Stamp | None:
        if path in self._stamps:
            return self._stamps[path]
        try:
            stamp = self._host.stamp(path)
        except OSError:
            self._facts.cacheable = False
            raise
        self._stamps[path] = stamp
        return stamp

    def readlink(self, path: bytes) -> bytes:
        return self._host.readlink(path)

    def read_start(self, path: bytes, limit: int) -> bytes:
        return self._host.read_start(path, limit)

    def scan(self, path: bytes) -> list[tuple[bytes, int]]:
        return self._host.scan(path)

    def now(self) -> float:
        return self._host.now()

    def is_dir(self, path: bytes) -> bool:
        return self._host.is_dir(path)
