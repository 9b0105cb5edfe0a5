"""Builds a mount tree with the mount API of Linux 5.12: mounts are made detached and attached by descriptor.

The caller is in a mount namespace of its own and has the capabilities to mount.  Its root directory stays
until `enter`, so host paths mean the host's files all the time.  Paths are absolute and looked up without
following any symlink.  Returned descriptors belong to the caller.  All failures are OSError.
"""

from __future__ import annotations

import errno
import os
import stat
import struct

from execserver.sandbox.kernel.syscalls import AT_FDCWD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from execserver.sandbox.kernel.syscalls import Kernel

_RESOLVE_NO_LINKS = 0x02 | 0x04  # neither magic links (/proc/N/fd) nor symlinks
_RESOLVE_IN_ROOT = 0x10
_OPEN_HOW = struct.Struct("=QQQ")
_MOUNT_ATTR = struct.Struct("=QQQQ")
_EMPTY_PATH = 0x1000
_RECURSIVE = 0x8000
_CLONE_TREE = 1
_TREE_CLOEXEC = 0o2000000
_NO_FOLLOW = 0x100
_FROM_DESCRIPTOR = 0x04
_FROM_AND_TO_DESCRIPTOR = 0x04 | 0x40
_SET_STRING = 1
_CREATE = 6
_CLOEXEC = 1

READ_ONLY = 1
NO_SUID = 2
NO_DEVICES = 4
NO_EXEC = 8
_MS_PRIVATE = 1 << 18
_MS_RECURSIVE = 1 << 14
_MS_BIND = 4096
_DETACH = 2
_ATTEMPTS = 16  # the kernel asks to repeat a lookup that raced with a rename


def available(kernel: Kernel) -> bool:
    """Tell whether the kernel has every call used here; tries once, with arguments that cannot succeed."""
    known = kernel.known.get("mounts")
    if known is None:
        known = kernel.known["mounts"] = all(_exists(kernel, *question) for question in _QUESTIONS)
    return bool(known)


def _exists(kernel: Kernel, name: str, arguments: tuple[object, ...], refusable: bool) -> bool:
    try:
        kernel.call(name, *arguments)
    except OSError as error:
        # A container's filter may answer EPERM to calls that it does not know.  The kernel answers EPERM to
        # ordinary users where it checks the caller before the arguments.
        return error.errno != errno.ENOSYS and (refusable or error.errno != errno.EPERM)
    return True


# Call, arguments, and whether the kernel refuses the call to ordinary users as such.
_QUESTIONS = (
    ("openat2", (-1, b"", None, 0), False),
    ("open_tree", (-1, b"", 0xFFFF0000), False),
    ("move_mount", (-1, b"", -1, b"", 0xFFFF0000), True),
    ("fsopen", (b"", 0xFFFF0000), True),
    ("mount_setattr", (-1, b"", 0, None, 0), False),
)


class NewMounts:
    """The mount tree under construction."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def open_source(self, path: bytes) -> int:
        """Open what a host path names, as an O_PATH descriptor."""
        return self._open(AT_FDCWD, path, _RESOLVE_NO_LINKS)

    def open_in(self, root: int, path: bytes) -> int:
        """Open what a path names in the tree below `root`, as an O_PATH descriptor."""
        return self._open(root, path, _RESOLVE_NO_LINKS | _RESOLVE_IN_ROOT)

    def begin_host(self, read_only: bool) -> int:
        """Begin with the host's tree, where devices and set-user-id bits are void; return its root."""
        # Attached over `/`, so no directory on the host is needed as a mount point.
        own_root = self._begin()
        tree = self._clone(own_root, True, NO_SUID | NO_DEVICES | (READ_ONLY if read_only else 0))
        self._attach(tree, own_root)
        self._kernel.close(own_root)
        return tree

    def begin_empty(self) -> int:
        """Begin with an empty tree that can be written until `read_only`; return its root."""
        own_root = self._begin()
        tree = self._make(b"tmpfs", NO_SUID | NO_DEVICES, mode=b"755")
        self._attach(tree, own_root)
        self._kernel.close(own_root)
        return tree

    def bind(self, source: int, root: int, path: bytes, read_only: bool) -> None:
        """Bind the tree of `source` at a path, with the mounts below it."""
        tree = self._clone(source, True, NO_SUID | NO_DEVICES | (READ_ONLY if read_only else 0))
        self._put(tree, root, path)

    def bind_device(self, path: bytes, directory: int, name: bytes) -> None:
        """Bind a character device of the host over a file of a directory, and let it work there.

        Raises ENODEV for anything else.
        """
        tree = self._kernel.call("open_tree", AT_FDCWD, path, _CLONE_TREE | _TREE_CLOEXEC | _NO_FOLLOW)
        try:
            self._kernel.run(check_device, tree)
            self._set(tree, NO_SUID | NO_EXEC, recursive=False)
            self._kernel.call("move_mount", tree, b"", directory, name, _FROM_DESCRIPTOR)
        finally:
            self._kernel.close(tree)

    def tmpfs(self, root: int, path: bytes, mode: int) -> int:
        """Mount an empty file system at a path; return its root."""
        tree = self._make(b"tmpfs", NO_SUID | NO_DEVICES, mode=b"%o" % mode)
        self._attach_at(tree, root, path)
        return tree

    def proc(self, root: int, path: bytes) -> int:
        """Mount a procfs of the caller's pid namespace at a path; return its root."""
        tree = self._make(b"proc", NO_SUID | NO_DEVICES | NO_EXEC)
        self._attach_at(tree, root, path)
        return tree

    def protect(self, mounted: int, names: Sequence[bytes]) -> None:
        """Make entries of the root of a mount read-only, by binding each over itself.

        Nobody else can change them, and none of them is a symlink.
        """
        # So they may be mounted by name; the working directory saves opening each.
        self._kernel.call("fchdir", mounted)
        for name in names:
            self._kernel.call("mount", name, name, None, _MS_BIND, None)
        if names:
            # Two calls for all instead of three for each: all become read-only, then the mount itself not.
            self._set(mounted, READ_ONLY, recursive=True)
            self._set(mounted, 0, recursive=False, without=READ_ONLY)

    def terminals(self, root: int, path: bytes) -> None:
        """Mount a new, empty set of pseudo terminals at a path."""
        self._put(self._make(b"devpts", NO_SUID | NO_EXEC, ptmxmode=b"666", mode=b"620"), root, path)

    def read_only(self, mounted: int) -> None:
        """Make a mount read-only, given its root; mounts below it stay as they are."""
        self._set(mounted, READ_ONLY, recursive=False)

    def enter(self, root: int) -> None:
        """Make the tree the root directory of this process and detach the host's."""
        enter(self._kernel, root)

    def _begin(self) -> int:
        make_private(self._kernel)
        return self._kernel.call("openat", AT_FDCWD, b"/", os.O_PATH | os.O_CLOEXEC, 0)

    def _open(self, directory: int, path: bytes, resolve: int) -> int:
        # No O_NOFOLLOW: with O_PATH that opens a symlink at the end, in spite of RESOLVE_NO_SYMLINKS.
        how = _OPEN_HOW.pack(os.O_PATH | os.O_CLOEXEC, 0, resolve)
        for _ in range(_ATTEMPTS):
            try:
                return self._kernel.call("openat2", directory, path, how, _OPEN_HOW.size)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EINTR):
                    raise
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)

    def _clone(self, source: int, recursive: bool, attributes: int) -> int:
        flags = _CLONE_TREE | _TREE_CLOEXEC | _EMPTY_PATH | (_RECURSIVE if recursive else 0)
        tree = self._kernel.call("open_tree", source, b"", flags)
        self._set(tree, attributes, recursive)
        return tree

    def _set(self, tree: int, attributes: int, recursive: bool, without: int = 0) -> None:
        flags = _EMPTY_PATH | (_RECURSIVE if recursive else 0)
        attr = _MOUNT_ATTR.pack(attributes, without, 0, 0)
        self._kernel.call("mount_setattr", tree, b"", flags, attr, _MOUNT_ATTR.size)

    def _make(self, kind: bytes, attributes: int, **options: bytes) -> int:
        call = self._kernel.call
        context = call("fsopen", kind, _CLOEXEC)
        try:
            for name, value in options.items():
                call("fsconfig", context, _SET_STRING, name.encode(), value, 0)
            call("fsconfig", context, _CREATE, None, None, 0)
            return call("fsmount", context, _CLOEXEC, attributes)
        finally:
            self._kernel.close(context)

    def _put(self, tree: int, root: int, path: bytes) -> None:
        try:
            self._attach_at(tree, root, path)
        finally:
            self._kernel.close(tree)

    def _attach_at(self, tree: int, root: int, path: bytes) -> None:
        target = self.open_in(root, path)
        try:
            self._attach(tree, target)
        finally:
            self._kernel.close(target)

    def _attach(self, tree: int, target: int) -> None:
        self._kernel.call("move_mount", tree, b"", target, b"", _FROM_AND_TO_DESCRIPTOR)


def check_device(opened: int) -> None:
    """Raise OSError ENODEV for what is no character device."""
    if not stat.S_ISCHR(os.fstat(opened).st_mode):
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))


def make_private(kernel: Kernel) -> None:
    """Stop mount propagation between the host and this mount namespace, in both directions."""
    kernel.call("mount", None, b"/", None, _MS_PRIVATE | _MS_RECURSIVE, None)


def enter(kernel: Kernel, root: int) -> None:
    """Make an attached tree the root directory of this process and detach the old one."""
    kernel.call("fchdir", root)
    # With twice the same path, the old root ends up on top of the new one and is unmounted from there.
    kernel.call("pivot_root", b".", b".")
    kernel.call("umount2", b".", _DETACH)
    kernel.call("chdir", b"/")


def leave(kernel: Kernel, root: int) -> None:
    """Unmount an attached tree, which covers the root directory of this process."""
    kernel.call("fchdir", root)
    kernel.call("umount2", b".", _DETACH)
    kernel.call("chdir", b"/")
