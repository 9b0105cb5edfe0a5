"""Where this process may make control groups, and the groups it has there: find, explain, set up, take away.

The server's group, or the one above it that was delegated, holds the leaf `server` with the server, its
zygotes and processes without limits, and a group `execserver.PID` with one for each session.  A group with
limits for groups below may hold no processes itself, so the server moves into the leaf first.  On a hybrid
machine v2 has no controllers: then groups count CPU time and end all at once, and that is all they do.
"""

from __future__ import annotations

import errno
import os

from execserver.resources.control_group import CONTROLLERS, ControlGroup, remove_tree

LEAF = "server"
_TREE = "execserver."
_MOVES = 20  # rounds in which all processes of the group are moved; others may fork meanwhile
_LEAST_KERNEL = (5, 7)  # clone3 into a group
_DELEGATED = ("trusted.delegate", "user.delegate")  # what systemd marks a delegated group with

_DELEGATE = (
    "run the server as a service with `Delegate=yes` (deploy/systemd), or by "
    "`systemd-run --user --scope -p Delegate=yes`"
)
_CONTAINER = (
    "give the container a writable cgroup file system: podman `--security-opt unmask=/sys/fs/cgroup`, "
    "containerd 2.1 `cgroup_writable`"
)
_UNIFIED = "boot with `systemd.unified_cgroup_hierarchy=1`, so that all controllers are in cgroup v2"


class Blocked(Exception):
    """No groups can be made, or a controller is missing: the reason, and what to do about it."""

    def __init__(self, blocker: str, cure: str) -> None:
        super().__init__(blocker)
        self.blocker = blocker
        self.cure = cure


class Place:
    """A group below which this process may make others, and the controllers these can have."""

    __slots__ = ("_mount", "controllers", "is_machine_root", "path")

    def __init__(self, path: str, controllers: frozenset[str], mount: str, is_machine_root: bool) -> None:
        self.path = path
        self.controllers = controllers
        self._mount = mount
        self.is_machine_root = is_machine_root  # it may hold processes, whatever is below

    def and_above(self) -> list[str]:
        """Return the path of the group, and those of all groups above it that can be seen."""
        paths = [self.path]
        while paths[-1] != self._mount:
            paths.append(os.path.dirname(paths[-1]))
        return paths

    def lacking(self, controller: str) -> Blocked:
        """Return why a controller is missing here."""
        if self.is_machine_root:
            return Blocked(f"the {controller} controller is not in cgroup v2 on this machine", _UNIFIED)
        return Blocked(f"the {controller} controller is not delegated to {self.path}", _DELEGATE)


def find_place(proc: str = "/proc/self") -> Place:
    """Return where groups can be made; nothing is changed.  Raises Blocked."""
    if _kernel() < _LEAST_KERNEL:
        raise Blocked("this kernel cannot start a process in a control group", "Linux 5.7 or newer")
    mount, root = _mount(f"{proc}/mountinfo")
    own = _own_path(f"{proc}/cgroup")
    if own is None:
        raise Blocked("this process is in no group of cgroup v2", _UNIFIED)
    inside = os.path.relpath(own, root)
    if own.startswith("/..") or inside.startswith(".."):  # of another cgroup namespace, or not shown
        raise Blocked(f"the control group of this process ({own}) is not below {mount}", _CONTAINER)
    path = os.path.normpath(os.path.join(mount, inside))
    above = os.path.dirname(path)
    if path != mount and (os.path.basename(path) == LEAF or _is_marked(above)) and _is_writable(above):
        path = above  # the leaf of an earlier start, or of `DelegateSubgroup=`
    _check_writable(path, is_mount=path == mount)
    return Place(path, _controllers(path), mount, not os.path.exists(f"{path}/cgroup.events"))


class Hierarchy:
    """The groups of one server."""

    def __init__(self, place: Place) -> None:
        """Move this process and its neighbours into the leaf if need be, and make the tree.

        Raises Blocked.
        """
        self.controllers = place.controllers
        self._place = place
        _remove_stale(place.path)
        try:
            if self.controllers:
                self._make_room()
            self._given = [ControlGroup.at(path) for path in place.and_above()]
            self.tree = self._tree(f"{place.path}/{_TREE}{os.getpid()}")
        except OSError as error:
            raise Blocked(f"{place.path}: {error.strerror}", _DELEGATE) from None

    def session_group(self, number: int) -> ControlGroup:
        """Make the group of a session.  Raises OSError."""
        return self._made(f"{self.tree.path}/s{number}")

    def process_group(self, session: ControlGroup, number: int) -> ControlGroup:
        """Make the group of a process.  Raises OSError."""
        return ControlGroup.make(f"{session.path}/p{number}")

    @property
    def ooms(self) -> int:
        """How often a memory limit of the group that the server was given, or of one above, was reached."""
        return sum(group.ooms for group in self._given)

    def lacking(self, controller: str) -> Blocked | None:
        """Return why groups have no such controller; None if they have."""
        return None if controller in self.controllers else self._place.lacking(controller)

    def close(self) -> None:
        """Kill what is left and remove all groups but the leaf, which holds this process."""
        self.tree.kill()
        remove_tree(self.tree.path)
        os.close(self.tree.fd)
        for group in self._given:
            os.close(group.fd)

    def _tree(self, path: str) -> ControlGroup:
        """Make the tree, or open that of the program before this one in the same process."""
        return ControlGroup.at(path) if os.path.isdir(path) else self._made(path)

    def _made(self, path: str) -> ControlGroup:
        group = ControlGroup.make(path)
        try:
            if self.controllers:
                group.write("cgroup.subtree_control", _enabling(self.controllers))
        except OSError:
            group.remove()
            raise
        return group

    def _make_room(self) -> None:
        """Have groups below get the controllers; that is refused while a process is in the group itself."""
        control = f"{self._place.path}/cgroup.subtree_control"
        if not self._place.is_machine_root:
            leaf = f"{self._place.path}/{LEAF}"
            os.makedirs(leaf, exist_ok=True)
            _move_all(self._place.path, leaf)
        with open(control, "w") as file:
            file.write(_enabling(self.controllers))


def _enabling(controllers: frozenset[str]) -> str:
    return " ".join(f"+{name}" for name in CONTROLLERS if name in controllers)


def _move_all(source: str, target: str) -> None:
    """Move every process of a group into another.  Raises Blocked for one that cannot be moved."""
    for _ in range(_MOVES):
        with open(f"{source}/cgroup.procs") as file:
            pids = file.read().split()
        if not pids:
            return
        for pid in pids:
            try:
                with open(f"{target}/cgroup.procs", "w") as file:
                    file.write(pid)
            except OSError as error:
                if error.errno != errno.ESRCH:  # it has ended
                    raise Blocked(f"process {pid} cannot be moved out of {source}", _DELEGATE) from None
    raise Blocked(f"others go on starting processes in {source}", _DELEGATE)


def _remove_stale(path: str) -> None:
    """Remove the groups of servers that were killed; a server's end leaves none."""
    for name in os.listdir(path):
        pid = name.removeprefix(_TREE)
        if name.startswith(_TREE) and pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            remove_tree(f"{path}/{name}")


def _check_writable(path: str, *, is_mount: bool) -> None:
    try:
        flags = os.statvfs(path).f_flag
    except OSError as error:  # something is mounted over it
        raise Blocked(f"control group {path} cannot be reached ({error.strerror})", _CONTAINER) from None
    if flags & os.ST_RDONLY:
        raise Blocked("the cgroup file system is mounted read-only here", _CONTAINER)
    if not _is_writable(path):
        raise Blocked(f"control group {path} is not delegated to this user", _DELEGATE)
    is_managed = os.path.isdir("/run/systemd/system") and not is_mount
    if os.geteuid() == 0 and is_managed and not _is_marked(path):
        raise Blocked(f"systemd has not delegated {path}, and could change it at any time", _DELEGATE)


def _is_writable(path: str) -> bool:
    files = (path, f"{path}/cgroup.procs", f"{path}/cgroup.subtree_control")
    return all(os.access(name, os.W_OK) for name in files)


def _is_marked(path: str) -> bool:
    for name in _DELEGATED:
        try:
            if os.getxattr(path, name) == b"1":
                return True
        except OSError:
            pass
    return False


def _controllers(path: str) -> frozenset[str]:
    with open(f"{path}/cgroup.controllers") as file:
        return frozenset(file.read().split()) & frozenset(CONTROLLERS)


def _own_path(name: str) -> str | None:
    with open(name) as file:
        return next((line[3:].rstrip("\n") for line in file if line.startswith("0::")), None)


def _mount(name: str) -> tuple[str, str]:
    """Return where cgroup v2 is mounted, and which of its groups is shown there."""
    with open(name) as file:
        for line in file:
            fields, _, kind = line.partition(" - ")
            if kind.startswith("cgroup2 "):
                words = fields.split()
                return _plain(words[4]), _plain(words[3])
    raise Blocked("no cgroup v2 is mounted here", _CONTAINER)


def _plain(text: str) -> str:
    """Undo how mountinfo writes blanks and backslashes."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def _kernel() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(character for character in minor if character.isdigit()) or 0)
