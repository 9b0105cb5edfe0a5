"""Builds the sandbox root of a plan: a mount namespace that shows exactly what the plan says.

The caller is the sandbox init: alone in fresh namespaces, and still with the capabilities there.  Everything
is mounted by descriptor.  What a mount of the plan names must still be the object that it was when the plan
was made; anything else is refused.  Mount points are made in our own file systems only, never on the host.
"""

from __future__ import annotations

import errno
import os
import stat

from execserver.sandbox.identity import check_identity
from execserver.sandbox.kernel import mounts, namespaces
from execserver.sandbox.kernel.mounts import NewMounts
from execserver.sandbox.kernel.mounts_old import OldMounts
from execserver.sandbox.plan import (
    HIDDEN_DIRECTORY,
    HIDDEN_FILE,
    LINK,
    PASSAGE,
    READ,
    ROOT_EMPTY,
    ROOT_READ_ONLY,
    WRITE,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from execserver.sandbox.kernel.namespaces import Limit
    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.sandbox.plan import Mount, SandboxPlan

DEVICES = (b"null", b"zero", b"full", b"random", b"urandom", b"tty")
_DEVICE_LINKS = (
    (b"fd", b"/proc/self/fd"),
    (b"stdin", b"/proc/self/fd/0"),
    (b"stdout", b"/proc/self/fd/1"),
    (b"stderr", b"/proc/self/fd/2"),
    (b"core", b"/proc/kcore"),
    (b"ptmx", b"pts/ptmx"),
)
_PROC_LINKS = ("self", "thread-self", "mounts", "net")
_HIDDEN_NAME = b".hidden"  # in /dev, only while the sandbox root is built
_MODES = {HIDDEN_DIRECTORY: 0o000, PASSAGE: 0o111}  # a passage can be walked through, but not listed


class RootFailed(Exception):
    """The sandbox root could not be built and nothing may run; the message says why."""


def enter_root(
    kernel: Kernel,
    plan: SandboxPlan,
    extra: Sequence[Mount] = (),
    console: bytes = b"",
    limits: Sequence[Limit] = (),
    show_outside: bool = False,
) -> None:
    """Build the sandbox root in the caller's own, fresh namespaces and move into it.  This is the slow path.

    `extra` are mounts on top of the plan's (mask targets for missing names).  `console` is the path of the
    terminal that becomes /dev/console.  `limits` pairs a kind of namespace with the number allowed inside.
    With `show_outside` the processes of the machine may be seen where a new /proc is refused.
    Raises RootFailed.
    """
    builder = Builder(kernel, show_outside)
    mask = os.umask(0)  # every mode below is given in full
    # /dev and /proc come before the plan's mounts: these may mask something in them.
    builder.step("the root", lambda: builder.begin(plan.root))
    builder.step("/dev", builder.devices)
    if console:
        builder.console(console)
    builder.step("/proc", lambda: builder.processes(limits))
    for mount in (*plan.mounts, *extra):
        builder.mount(mount)
    builder.step("the root", builder.finish)
    os.umask(mask)


class Builder:
    """One sandbox root being built, with either mount API of the kernel, under umask 0.

    Call its steps in the order of `enter_root`.  `root` and `dev` are descriptors of the new root and of its
    /dev, once these are made.

    A step that is to be recorded (see `recording`) makes its system calls through `kernel`, since no
    descriptor is open while it records.
    """

    def __init__(self, kernel: Kernel, show_outside: bool) -> None:
        self._kernel = kernel
        self._tree = _tree(kernel)
        self._show_outside = show_outside
        self._hidden_source = False
        self.root = -1
        self.dev = -1
        self._own: dict[int, int] = {}  # roots of our own file systems, with the mode of directories in them
        # Roots of mounts that become read-only only at the end: until then mount points are made in them.
        self._to_protect: list[int] = []

    def step(self, what: str, act: Step) -> None:
        """Do a part of the work.  Raises RootFailed, which names the part and the system call."""
        try:
            act()
        except OSError as error:
            call = f" ({error.filename})" if isinstance(error.filename, str) else ""
            raise RootFailed(f"cannot mount {what}: {error.strerror}{call}") from None

    def begin(self, root: str) -> None:
        """Start with the root that the plan asks for, one of the ROOT_ constants."""
        if root == ROOT_EMPTY:
            self.root = self._tree.begin_empty()
            self._own[self.root] = 0o755
            # A write outside every mount then fails with EROFS instead of vanishing with the sandbox.
            self._to_protect.append(self.root)
        else:
            self.root = self._tree.begin_host(read_only=root == ROOT_READ_ONLY)

    def devices(self) -> None:
        """Give the sandbox root harmless devices, terminals and shared memory of its own."""
        tree, root, call = self._tree, self.root, self._kernel.call
        self._kernel.close(self._target(b"/dev", True))
        self.dev = dev = tree.tmpfs(root, b"/dev", 0o755)
        self._own[dev] = 0o755
        for name in DEVICES:
            put_device(self._kernel, tree, dev, b"/dev/" + name, name)
        for name, target in _DEVICE_LINKS:
            call("symlinkat", target, dev, name)
        call("mkdirat", dev, b"pts", 0o755)
        call("mkdirat", dev, b"shm", 0o1777)
        # /dev becomes read-only in the end, since what is made there would vanish.  A mount of /dev/shm over
        # itself stays writable.
        shm = tree.open_in(root, b"/dev/shm")
        try:
            tree.bind(shm, root, b"/dev/shm", read_only=False)
        finally:
            self._kernel.close(shm)
        self._to_protect.append(dev)
        try:
            tree.terminals(root, b"/dev/pts")
        except OSError:
            pass  # older kernels want user 0 mapped in the namespace; then there are no new terminals inside

    def console(self, path: bytes) -> None:
        """Show a terminal as /dev/console."""
        self.step("/dev", lambda: put_device(self._kernel, self._tree, self.dev, path, b"console"))

    def mount(self, mount: Mount) -> None:
        """Carry out one mount of the plan.  Raises RootFailed."""
        shown = os.fsdecode(mount.path)
        if mount.kind in (READ, WRITE):
            self.step(shown, lambda: self._bind(mount))
        elif mount.kind == HIDDEN_FILE:
            self.step(shown, lambda: self._hide_file(mount))
        elif mount.kind in _MODES:
            self.step(shown, lambda: self._hide_directory(mount))
        elif mount.kind == LINK:
            self.step(shown, lambda: self._link(mount))
        else:
            raise RootFailed(f"cannot mount {shown}: unknown kind {mount.kind}")

    def processes(self, limits: Sequence[Limit], settings: Sequence[bytes] | None = None) -> None:
        """Show the processes of this namespace, and let nothing in /proc change the host.

        `limits` are as for `enter_root`.  `settings` names the entries of /proc to protect besides processes;
        with None they are looked for in the new /proc.  Raises OSError.
        """
        kernel = self._kernel
        kernel.close(self._target(b"/proc", True))
        try:
            proc = self._tree.proc(self.root, b"/proc")
        except OSError as error:
            # The kernel allows no new procfs where mounts mask parts of this machine's own: containers.
            if error.errno != errno.EPERM:
                raise
            if self._show_outside:
                # The caller knows that a user namespace or Landlock bars the way through /proc/N/root.
                self._bind_path(b"/proc", True)
            else:
                self._to_protect.append(self._tree.tmpfs(self.root, b"/proc", 0o555))
            return
        # The limits are settings, so they come before all settings become read-only.
        for kind, most in limits:
            namespaces.limit(kernel, proc, kind, most)
        # /proc itself stays writable: nested sandboxes write their id maps there.
        if settings is None:
            kernel.run(_protect_settings, kernel.plain(), proc)
        else:
            self._tree.protect(proc, settings)  # 13 calls for ten entries; to look for them takes 40
        kernel.close(proc)

    def finish(self) -> None:
        """Close what was open for building and move in.  There is no way back from here.  Raises OSError."""
        if self._hidden_source:
            # While /dev is still writable.  The masks keep the file; nobody inside can name it.
            self._kernel.call("unlinkat", self.dev, _HIDDEN_NAME, 0)
        for mounted in self._to_protect:
            self._tree.read_only(mounted)
        self._tree.enter(self.root)
        for opened in {self.root, self.dev, *self._to_protect}:
            self._kernel.close(opened)

    def cover(self, path: bytes, check: Check, index: int) -> None:
        """Mount what exists at a path over itself, read-only: a mask target on the host.

        `check` is called with `index` and the descriptor of what was opened; it raises OSError for a wrong
        object.  A recorded step knows only the path: each start may find another mask target there.
        """
        source = self._tree.open_source(path)
        try:
            self._kernel.run(check, index, source)
            self._tree.bind(source, self.root, path, read_only=True)
        finally:
            self._kernel.close(source)

    def _bind(self, mount: Mount) -> None:
        source = self._tree.open_source(mount.source)
        try:
            # Before it is mounted: whoever may write above it could have put another object there.
            self._kernel.run(check_identity, mount.identity, source)
            # The plan's file type where it has one: while steps are recorded, `source` is not open.
            directory = stat.S_IFMT(os.fstat(source).st_mode) if mount.identity is None else mount.identity[2]
            self._kernel.close(self._target(mount.path, directory == stat.S_IFDIR))
            self._tree.bind(source, self.root, mount.path, mount.kind == READ)
        finally:
            self._kernel.close(source)

    def _bind_path(self, path: bytes, read_only: bool) -> None:
        source = self._tree.open_source(path)
        try:
            self._tree.bind(source, self.root, path, read_only)
        finally:
            self._kernel.close(source)

    def _hide_directory(self, mount: Mount) -> None:
        self._check_target(mount, directory=True)
        mode = _MODES[mount.kind]
        mounted = self._tree.tmpfs(self.root, mount.path, mode)
        if mount.kind == PASSAGE:
            self._own[mounted] = 0o111
            self._to_protect.append(mounted)
        else:
            # Nothing is mounted below it, so it need not wait for the end: there may be thousands, and each
            # would keep a descriptor open.
            self._tree.read_only(mounted)
            self._kernel.close(mounted)

    def _hide_file(self, mount: Mount) -> None:
        self._check_target(mount, directory=False)
        if not self._hidden_source:
            # One empty file without any rights (mode 0) serves all masks.
            self._kernel.call("mknodat", self.dev, _HIDDEN_NAME, stat.S_IFREG, 0)
            self._hidden_source = True
        source = self._tree.open_in(self.root, b"/dev/" + _HIDDEN_NAME)
        try:
            self._tree.bind(source, self.root, mount.path, read_only=True)
        finally:
            self._kernel.close(source)

    def _link(self, mount: Mount) -> None:
        parent = self._target(os.path.dirname(mount.path), True)
        try:
            if self._mode_of_own(parent) is None:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), mount.path)
            os.symlink(mount.source, os.path.basename(mount.path), dir_fd=parent)
        finally:
            os.close(parent)

    def _check_target(self, mount: Mount, directory: bool) -> None:
        target = self._target(mount.path, directory)
        try:
            self._kernel.run(check_identity, mount.identity, target)
        finally:
            self._kernel.close(target)

    def _target(self, path: bytes, directory: bool) -> int:
        """Open a mount point.  It is made where it is missing in one of our own file systems."""
        try:
            return self._tree.open_in(self.root, path)
        except FileNotFoundError:
            pass
        parent = self._target(os.path.dirname(path), True)
        try:
            mode = self._mode_of_own(parent)
            if mode is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            name = os.path.basename(path)
            if directory:
                os.mkdir(name, mode, dir_fd=parent)
            else:
                os.mknod(name, stat.S_IFREG | 0o444, dir_fd=parent)
        finally:
            os.close(parent)
        return self._tree.open_in(self.root, path)

    def _mode_of_own(self, opened: int) -> int | None:
        """Return the mode for directories made in the file system of a descriptor; None for the host's."""
        device = os.fstat(opened).st_dev  # each tmpfs of ours has a device number of its own
        return next((mode for own, mode in self._own.items() if os.fstat(own).st_dev == device), None)


def put_device(kernel: Kernel, tree: NewMounts | OldMounts, dev: int, source: bytes, name: bytes) -> None:
    """Put a device of the host into a /dev of ours; one that the host does not have is left out."""
    # In a user namespace the kernel lets nobody make a device node, so the host's is bound over a file.
    kernel.call("mknodat", dev, name, stat.S_IFREG | 0o644, 0)
    try:
        tree.bind_device(source, dev, name)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENODEV):
            raise
        kernel.call("unlinkat", dev, name, 0)


def _protect_settings(kernel: Kernel, proc: int) -> None:
    _tree(kernel).protect(proc, settings_in(proc))


def _tree(kernel: Kernel) -> NewMounts | OldMounts:
    return NewMounts(kernel) if mounts.available(kernel) else OldMounts(kernel)


def settings_of_host() -> list[bytes] | None:
    """Return the names of `settings_in` for every /proc, read from this machine's own.

    Besides processes, every procfs has the same entries.  None where this machine's own does not show them
    all.
    """
    try:
        proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # A procfs of another pid namespace, or one with `subset=pid`, does not count.
            whole = os.readlink("self", dir_fd=proc) == str(os.getpid()) and "sys" in os.listdir(proc)
            return settings_in(proc) if whole else None
        finally:
            os.close(proc)
    except OSError:
        return None  # also where something is mounted over one of them


def settings_in(proc: int) -> list[bytes]:
    """Return the names of what this user owns in a /proc, besides processes, and could write to or in.

    For user 0 these are many (`sys`, `irq`, `bus`, ...), for an ordinary user none.  Raises OSError; EXDEV
    for an entry that something is mounted over.
    """
    # Opened again: what `fsmount` returns is an O_PATH descriptor, which cannot be listed.
    listing = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=proc)
    user, found, device = os.geteuid(), [], os.fstat(proc).st_dev
    try:
        for name in os.listdir(listing):
            if not name.isdigit() and name not in _PROC_LINKS:
                seen = os.stat(name, dir_fd=listing, follow_symlinks=False)
                if seen.st_dev != device:
                    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), name)
                writable = seen.st_mode & (0o200 if seen.st_uid == user else 0o002)
                # A directory's own mode says nothing about what is in it.
                if writable or (stat.S_ISDIR(seen.st_mode) and seen.st_uid == user):
                    found.append(os.fsencode(name))
    finally:
        os.close(listing)
    return found


if TYPE_CHECKING:
    from collections.abc import Callable

    Step = Callable[[], None]
    Check = Callable[[int, int], None]
