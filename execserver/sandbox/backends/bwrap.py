"""Bubblewrap as a back end: finds the one to use, and turns a plan into its arguments.

Except for `find` this is pure: nothing here starts a program.  Bubblewrap is started with an empty
environment, so no variable of a request, such as LD_PRELOAD, acts on bubblewrap itself; `--setenv` gives the
command its variables.  Arguments come from a descriptor.

The sandbox root is that of the native back end with these differences: `PWD` is set to the working directory,
the command has no controlling terminal, and where bubblewrap cannot bind descriptors (`--bind-fd`), it
follows the plan's paths a second time.
"""

from __future__ import annotations

import os
import stat
import struct

from execserver.sandbox.plan import (
    HIDDEN_DIRECTORY,
    HIDDEN_FILE,
    LINK,
    NETWORK_NONE,
    NETWORK_PROXY,
    PASSAGE,
    ROOT_EMPTY,
    ROOT_HOST,
    ROOT_READ_ONLY,
    WRITE,
    PlanRefused,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.sandbox.plan import Mount, SandboxPlan

PROGRAM = b"bwrap"

_NEEDED = (
    "--args",
    "--seccomp",
    "--perms",
    "--json-status-fd",
    "--cap-drop",
    "--remount-ro",
    "--disable-userns",
)
_MAX_ARGUMENTS = 9000  # bubblewrap's own limit
_FACTS = struct.Struct("=QQQQBH")
_SHARED_MEMORY = b"/dev/shm"


class Bwrap:
    """A bubblewrap that may be used: where it is, which file it is, and which options it has.

    `identity` is device, inode, size and change time (ns) of the file.  With `setuid` it has root's rights
    while it builds the sandbox root, and so needs no user namespace.  A `joinable` one makes networks that we
    may enter.
    """

    __slots__ = ("argv0", "bind_fd", "identity", "joinable", "path", "setuid", "version")

    def __init__(
        self,
        path: bytes,
        identity: tuple[int, int, int, int],
        setuid: bool,
        version: str = "",
        argv0: bool = False,
        bind_fd: bool = False,
        joinable: bool = False,
    ) -> None:
        self.path = path
        self.identity = identity
        self.setuid = setuid
        self.version = version
        self.argv0 = argv0
        self.bind_fd = bind_fd
        self.joinable = joinable

    def take_help(self, text: str) -> str:
        """Read the text of `--help`; return the first needed option that is missing, or ""."""
        options = set(text.split())
        self.argv0 = "--argv0" in options
        self.bind_fd = "--ro-bind-fd" in options
        return next((option for option in _NEEDED if option not in options), "")


def encode(bwrap: Bwrap) -> bytes:
    """Return what the zygote needs to know about a bubblewrap, as bytes."""
    flags = bwrap.setuid | bwrap.argv0 << 1 | bwrap.bind_fd << 2 | bwrap.joinable << 3
    return _FACTS.pack(*bwrap.identity, flags, len(bwrap.path)) + bwrap.path


def decode(data: bytes) -> Bwrap:
    """Return the bubblewrap that `encode` put into some bytes.  Raises PlanRefused for anything else."""
    try:
        *identity, flags, length = _FACTS.unpack_from(data)
    except struct.error:
        raise PlanRefused("a plan for bubblewrap names none") from None
    path = data[_FACTS.size :]
    if len(path) != length:
        raise PlanRefused("a plan for bubblewrap names none")
    device, inode, size, changed = identity
    found = (device, inode, size, changed)
    return Bwrap(path, found, bool(flags & 1), "", bool(flags & 2), bool(flags & 4), bool(flags & 8))


class Rejected(Exception):
    """The program named bwrap that was found must not be used; the text says why."""


def identity_of(status: os.stat_result) -> tuple[int, int, int, int]:
    """Return what distinguishes a file from another one put in its place."""
    return (status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns)


def find(search_path: bytes, cwd: bytes) -> Bwrap | None:
    """Return the first bubblewrap in a search path, or None without one.

    `search_path` is the one that the server was started with, never one from a request.  Relative entries do
    not count, nor do those below the working directory (unless that is `/`).  Raises Rejected if the first
    bubblewrap found can be replaced by anybody but root.
    """
    below = cwd.rstrip(b"/") + b"/"
    for folder in search_path.split(b":"):
        if not folder.startswith(b"/"):
            continue
        path = os.path.realpath(os.path.join(folder, PROGRAM))
        # As the reference server does: a workspace must not bring its own bwrap.
        if below != b"/" and path.startswith(below):
            continue
        try:
            status = os.stat(path)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode) and os.access(path, os.X_OK):
            _check_owners(path, status)
            return Bwrap(path, identity_of(status), bool(status.st_mode & stat.S_ISUID and not status.st_uid))
    return None


def _check_owners(path: bytes, status: os.stat_result) -> None:
    """Raise Rejected unless only root can replace the file: else a sandboxed command might be able to."""
    while True:
        shown = os.fsdecode(path)
        if status.st_uid:
            raise Rejected(
                f"{shown} belongs to user {status.st_uid} and not to root, who alone may replace it"
            )
        # In a sticky directory such as /tmp only the owner of a file, who is root here, can replace it.
        sticky_folder = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not sticky_folder:
            raise Rejected(f"{shown} can be written by others than root")
        if path == b"/":
            return
        path = os.path.dirname(path)
        status = os.stat(path)


def root_arguments(
    plan: SandboxPlan,
    bwrap: Bwrap,
    *,
    covers: Sequence[Mount] = (),
    extra_readable: Sequence[bytes] = (),
    settings: Sequence[bytes] = (),
    open_source: Callable[[Mount], int] | None = None,
) -> list[bytes]:
    """Return the options that make bubblewrap build the sandbox root of a plan.

    `covers` are mounts on top of the plan's: of the mask targets for its missing paths.  `extra_readable` are
    trees that a file worker itself needs.  `settings` are the entries of /proc that could be written to.
    `open_source` returns an inheritable descriptor of what a mount binds; it is called only where bubblewrap
    takes descriptors.  Raises PlanRefused for what cannot be expressed.
    """
    options = _isolation(plan, bwrap)
    options += _root(plan)
    # bubblewrap leaves /proc/sys and the like writable for root inside (0.8.0): bound read-only over it.
    for path in (*settings, *extra_readable):
        options += [b"--ro-bind", path, path]
    passages = [mount.path for mount in plan.mounts if mount.kind == PASSAGE]
    for mount in (*plan.mounts, *covers):
        options += _mount(mount, open_source if bwrap.bind_fd else None)
    # Only now: bubblewrap makes the mount points below a passage while it mounts.
    for path in sorted(passages, reverse=True):
        options += [b"--remount-ro", path]
    if plan.root == ROOT_EMPTY:
        options += [b"--remount-ro", b"/"]
    return options


def command_arguments(
    options: Sequence[bytes],
    bwrap: Bwrap,
    *,
    cwd: bytes | None,
    env: Sequence[bytes],
    arg0: bytes | None = None,
) -> list[bytes]:
    """Return all options for a command: those of the sandbox root, its directory, its variables, its arg0.

    Without a directory bubblewrap takes its own, and where the root lacks that, the command's `HOME` or `/`.

    A bubblewrap without `--argv0` drops the arg0, as the reference server does.  Raises PlanRefused for a
    variable without a name or without `=`, which bubblewrap does not take.
    """
    every = [*options] if cwd is None else [*options, b"--chdir", cwd]
    for entry in env:
        name, equals, value = entry.partition(b"=")
        if not name or not equals:
            raise PlanRefused("bubblewrap passes on no environment variable without a name")
        every += [b"--setenv", name, value]
    if arg0 is not None and bwrap.argv0:
        every += [b"--argv0", arg0]
    return every


def first_process(status: bytes) -> int:
    """Return the pid of a sandbox's first process that a status message names; 0 if it names none."""
    digits = status.partition(b'"child-pid":')[2].strip().partition(b",")[0].rstrip(b" }\n")
    return int(digits) if digits.isdigit() else 0


def check_count(options: Sequence[bytes], argv: Sequence[bytes]) -> None:
    """Raise PlanRefused when there are more arguments than bubblewrap takes."""
    if len(options) + len(argv) + 16 > _MAX_ARGUMENTS:
        raise PlanRefused(f"bubblewrap takes no more than {_MAX_ARGUMENTS} arguments")


def _isolation(plan: SandboxPlan, bwrap: Bwrap) -> list[bytes]:
    options = [b"--new-session", b"--die-with-parent", b"--cap-drop", b"ALL"]
    if not bwrap.setuid:
        # In a user namespace of its own a command could mount the control groups, writable.
        options += [b"--unshare-user", b"--disable-userns"]
    options += [b"--unshare-pid", b"--unshare-ipc", b"--unshare-uts"]
    if plan.network in (NETWORK_NONE, NETWORK_PROXY):
        options.append(b"--unshare-net")
    return options


def _root(plan: SandboxPlan) -> list[bytes]:
    if plan.root == ROOT_HOST:
        return [b"--dev-bind", b"/", b"/", b"--proc", b"/proc"]  # only the network is another one
    if plan.root == ROOT_EMPTY:
        base = [b"--tmpfs", b"/"]
    else:
        base = [b"--ro-bind" if plan.root == ROOT_READ_ONLY else b"--bind", b"/", b"/"]
    shared_memory = [b"--perms", b"1777", b"--tmpfs", _SHARED_MEMORY]
    # What a command makes in /dev would vanish with the sandbox, so /dev becomes read-only.
    return [*base, b"--dev", b"/dev", *shared_memory, b"--remount-ro", b"/dev", b"--proc", b"/proc"]


def _mount(mount: Mount, open_source: Callable[[Mount], int] | None) -> list[bytes]:
    path = mount.path
    if mount.kind == HIDDEN_DIRECTORY:
        return [b"--perms", b"000", b"--tmpfs", path, b"--remount-ro", path]
    if mount.kind == PASSAGE:
        return [b"--perms", b"111", b"--tmpfs", path]
    if mount.kind == HIDDEN_FILE:
        # A device on a mount where devices are void: nobody can open it, not even root.
        return [b"--ro-bind", b"/dev/null", path]
    if mount.kind == LINK:
        return [b"--symlink", mount.source, path]
    option = b"--bind" if mount.kind == WRITE else b"--ro-bind"
    if open_source is None:
        return [option, mount.source, path]
    return [option + b"-fd", b"%d" % open_source(mount), path]
