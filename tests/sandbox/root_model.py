"""What a plan's mounts show, worked out on a host that exists nowhere."""

from __future__ import annotations

import stat

from execserver.sandbox import plan as words
from execserver.sandbox.plan import Mount, SandboxPlan
from tests.support.fake_host import FakeHost

RANK = {"nothing": 0, "deny": 0, "read": 1, "write": 2}
_ROOTS = {
    words.ROOT_EMPTY: "nothing",
    words.ROOT_READ_ONLY: "read",
    words.ROOT_WRITABLE: "write",
    words.ROOT_HOST: "write",
}


class View:
    """A plan carried out.  It also checks that the plan can be: parents first, mount points there."""

    def __init__(self, plan: SandboxPlan, host: FakeHost) -> None:
        self.plan = plan
        self.host = host
        self.mounts: dict[str, Mount] = {}
        for mount in plan.mounts:
            path = mount.path.decode()
            assert path not in self.mounts, "two mounts on one path"
            assert not any(later.startswith(path + "/") for later in self.mounts), "a parent after its child"
            self._check(mount)
            self.mounts[path] = mount
        self.missing = {missing.path.decode() for missing in plan.missing}
        for missing in plan.missing:
            parent = missing.path.rpartition(b"/")[0] or b"/"
            # Where a link leads nowhere no target can be made, and the start fails.
            kind = host.nodes.get(missing.path, (0, b""))[0]
            assert not kind or stat.S_ISLNK(kind)
            assert host.identity(parent) == missing.parent
            assert self.access(parent.decode()) == "write"

    def access(self, path: str) -> str:
        """Return what can be done with an existing path that has no links: nothing, read or write."""
        mount = self.deepest(path)
        if mount is None:
            return _ROOTS[self.plan.root]
        return mount.kind if mount.kind in (words.READ, words.WRITE) else "nothing"

    def can_create(self, path: str) -> bool:
        """Tell whether a missing path, whose parent exists and has no links, can be made."""
        return self.access(path.rpartition("/")[0] or "/") == "write" and path not in self.missing

    def can_move(self, path: str) -> bool:
        """Tell whether an existing path can be renamed or removed: its directory is writable, it no mount."""
        return self.access(path.rpartition("/")[0] or "/") == "write" and path not in self.mounts

    def move(self, path: str, other: str) -> None:
        """Rename a path: what is mounted below it goes along."""
        self.mounts = {_moved(known, path, other): mount for known, mount in self.mounts.items()}
        self.missing = {_moved(known, path, other) for known in self.missing}

    def deepest(self, path: str) -> Mount | None:
        """Return the mount that shows a path."""
        while path:
            if path in self.mounts:
                return self.mounts[path]
            path = path.rpartition("/")[0]
        return None

    def leads_to(self, path: str) -> str | None:
        """Return the host's path that a path of the view leads to, by its links; None for nowhere."""
        done, names, count = "", path.split("/")[::-1], 0
        while names:
            name = names.pop()
            if name in ("", "."):
                continue
            if name == "..":
                done = done.rpartition("/")[0]
                continue
            here = f"{done}/{name}"
            text = self._link(here)
            if text is None and not self._exists(here):
                return None
            if text is None:
                done = here
                continue
            count += 1
            if count > 40:
                return None
            done = "" if text.startswith("/") else done
            names += text.split("/")[::-1]
        return done or "/"

    def _exists(self, path: str) -> bool:
        mount = self.mounts.get(path)
        if mount is not None or any(known.startswith(path + "/") for known in self.mounts):
            return True
        return self.access(path) != "nothing" and path.encode() in self.host.nodes

    def _link(self, path: str) -> str | None:
        mount = self.mounts.get(path)
        if mount is not None:
            return mount.source.decode() if mount.kind == words.LINK else None
        if self.access(path) == "nothing":
            return None
        kind, text = self.host.nodes.get(path.encode(), (0, b""))
        return text.decode() if kind == 0o120000 else None

    def _check(self, mount: Mount) -> None:
        kind = mount.identity[2] if mount.identity else 0
        if mount.kind == words.LINK:
            assert mount.identity is None
            assert self.access(mount.path.decode()) == "nothing"
            return
        assert mount.identity == self.host.identity(mount.path)
        assert kind != 0o120000
        if mount.kind in (words.READ, words.WRITE):
            assert mount.source == mount.path
        else:
            assert mount.source == b""
            assert (kind == 0o040000) == (mount.kind != words.HIDDEN_FILE)


def _moved(known: str, path: str, other: str) -> str:
    return other + known[len(path) :] if known == path or known.startswith(path + "/") else known
