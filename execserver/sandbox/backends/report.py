"""What a machine offers for sandboxes, as plain data: made by `probe`, read by `selection` and by users.

It travels as JSON from the probing process to the server.  So everything can be turned into members (dicts,
lists, texts, numbers) and back.
"""

from __future__ import annotations

from execserver.sandbox.backends.bwrap import Bwrap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# The probed things by name, in the order in which they are shown.
USER_NAMESPACES = "user-namespaces"
NAMESPACES = "namespaces"
PROC = "proc"
MOUNT_CALLS = "mount-calls"
NATIVE = "native-view"
SECCOMP = "seccomp"
LANDLOCK = "landlock"
BUBBLEWRAP = "bubblewrap"
PROGRAM_FILES = "program-files"
STATE_FOLDER = "state-folder"

MOUNTS_NEW = "new"  # by descriptor, with the mount calls of Linux 5.12
MOUNTS_OLD = "old"  # with mount(2)


class Check:
    """One probe: whether it works, what was seen, and if it does not work the blocker and the remedy."""

    __slots__ = ("blocker", "cure", "detail", "name", "works")

    def __init__(self, name: str, works: bool, detail: str = "", blocker: str = "", cure: str = "") -> None:
        self.name = name
        self.works = works
        self.detail = detail
        self.blocker = blocker
        self.cure = cure

    def members(self) -> dict[str, object]:
        """Return the probe as members; blocker and cure are null where it works."""
        return {
            "name": self.name,
            "works": self.works,
            "detail": self.detail,
            "blocker": self.blocker or None,
            "cure": self.cure or None,
        }


class Report:
    """The results of all probes.

    `native` tells whether the native back end can build sandbox roots here; `mounts` with which calls;
    `user_namespace` whether in a user namespace of its own (else with root's rights).  `landlock_abi` is 0
    without Landlock.  `bwrap` is None unless a working bubblewrap was found.
    """

    __slots__ = (
        "bwrap",
        "checks",
        "kernel",
        "landlock_abi",
        "mounts",
        "native",
        "seccomp",
        "uid",
        "user_namespace",
    )

    def __init__(
        self,
        *,
        kernel: str = "",
        uid: int = 0,
        native: bool = False,
        mounts: str = MOUNTS_NEW,
        user_namespace: bool = True,
        seccomp: bool = False,
        landlock_abi: int = 0,
        bwrap: Bwrap | None = None,
        checks: tuple[Check, ...] = (),
    ) -> None:
        self.kernel = kernel
        self.uid = uid
        self.native = native
        self.mounts = mounts
        self.user_namespace = user_namespace
        self.seccomp = seccomp
        self.landlock_abi = landlock_abi
        self.bwrap = bwrap
        self.checks = checks

    def check(self, name: str) -> Check:
        """Return the probe of that name; one that was not made counts as not working, for that reason."""
        for check in self.checks:
            if check.name == name:
                return check
        return Check(name, False, blocker=f"{name} was not probed", cure="run `execserver doctor`")

    def members(self) -> dict[str, Any]:
        """Return the report as members."""
        return {
            "kernel": self.kernel,
            "uid": self.uid,
            "native": self.native,
            "mounts": self.mounts,
            "userNamespace": self.user_namespace,
            "seccomp": self.seccomp,
            "landlockAbi": self.landlock_abi,
            "bubblewrap": None if self.bwrap is None else _bwrap_members(self.bwrap),
            "checks": [check.members() for check in self.checks],
        }


def from_members(members: Mapping[str, Any]) -> Report:
    """Make a report from its members.  Raises KeyError, TypeError or ValueError for anything else."""
    found = members["bubblewrap"]
    return Report(
        kernel=str(members["kernel"]),
        uid=int(members["uid"]),
        native=members["native"] is True,
        mounts=str(members["mounts"]),
        user_namespace=members["userNamespace"] is True,
        seccomp=members["seccomp"] is True,
        landlock_abi=int(members["landlockAbi"]),
        bwrap=None if found is None else _bwrap_from(found),
        checks=tuple(
            Check(
                str(one["name"]),
                one["works"] is True,
                str(one["detail"]),
                str(one["blocker"] or ""),
                str(one["cure"] or ""),
            )
            for one in members["checks"]
        ),
    )


def _bwrap_members(bwrap: Bwrap) -> dict[str, object]:
    return {
        "path": bwrap.path.decode("utf-8", "surrogateescape"),
        "version": bwrap.version,
        "setuid": bwrap.setuid,
        "argv0": bwrap.argv0,
        "bindFd": bwrap.bind_fd,
        "joinable": bwrap.joinable,
        "identity": list(bwrap.identity),
    }


def _bwrap_from(members: Mapping[str, Any]) -> Bwrap:
    device, inode, size, changed = members["identity"]
    return Bwrap(
        str(members["path"]).encode("utf-8", "surrogateescape"),
        (int(device), int(inode), int(size), int(changed)),
        members["setuid"] is True,
        str(members["version"]),
        members["argv0"] is True,
        members["bindFd"] is True,
        members["joinable"] is True,
    )
