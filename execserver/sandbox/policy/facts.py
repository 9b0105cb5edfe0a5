"""Host facts: what a plan was made from, to tell cheaply whether planning would give the same plan again.

The facts of a plan are what was found at every path that was looked up: roots with the directories and
symlinks on the way to them, protected and denied paths, metadata names, git directories, and the absence of
any of these.
"""

from __future__ import annotations

from execserver.sandbox.policy.host import Host, Stamp


class Facts:
    """The facts of one plan.  `cacheable` is False where only planning anew can tell: with deny patterns."""

    __slots__ = ("cacheable", "stamps")

    def __init__(self) -> None:
        self.cacheable = True
        self.stamps: dict[bytes, Stamp | None] = {}

    def noting(self, host: Host) -> Host:
        """Return the host as one that looks up each path only once and records what it found."""
        return _NotingHost(host, self)

    def hold(self, host: Host) -> bool:
        """Tell whether the policy and the plan would come out the same now.

        Also False if something cannot be looked up.
        """
        return self.cacheable and host.shows(self.stamps)


class _NotingHost(Host):
    """A host whose answers become facts; if a path cannot be looked up, the facts are worthless."""

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
            self._facts.cacheable = False  # what could not be looked up can change unseen
            raise
        self._stamps[path] = stamp
        return stamp

    # Recorded are stamps only: a symlink's or a file's has its change time, which stands for the content.
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
