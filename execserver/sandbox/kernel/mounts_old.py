"""Builds the same tree as `mounts` on kernels before 5.12: mount(2) on the descriptors in /proc/self/fd.

Mounts are made in place and then restricted one by one, in the kernel's order; nothing runs in the namespace
meanwhile.  Lookups open one component after the other and follow no symlink.
"""

from __future__ import annotations

import errno
import os
import stat

from execserver.sandbox.kernel.mounts import check_device, enter, make_private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    # A line of mountinfo: number, number of the parent, path.  A number may serve again, but then for another
    # path or below another mount.
    _Mounted = tuple[int, int, bytes]

    from execserver.sandbox.kernel.syscalls import Kernel

_READ_ONLY = 1
_NO_SUID = 2
_NO_DEVICES = 4
_NO_EXEC = 8
_REMOUNT = 32
_BIND = 4096
_RECURSIVE = 1 << 14
_KEPT = _READ_ONLY | _NO_SUID | _NO_DEVICES | _NO_EXEC  # statvfs has the same bits
_REFERENCE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class OldMounts:
    """The mount tree under construction; the methods are those of `NewMounts`."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def open_source(self, path: bytes) -> int:
        """Open what a host path names, as an O_PATH descriptor."""
        return _walk(os.open("/", _REFERENCE), path)

    def open_in(self, root: int, path: bytes) -> int:
        """Open what a path names in the tree below `root`, as an O_PATH descriptor."""
        return _walk(os.dup(root), path)

    def begin_host(self, read_only: bool) -> int:
        """Begin with the host's tree, where devices and set-user-id bits are void; return its root."""
        make_private(self._kernel)
        own_root = os.open("/", _REFERENCE)
        # A bind mount takes no other flags, here or below: restrictions need a remount of each mount.
        before = _mounts()
        self._mount(_link(own_root), own_root, None, _BIND | _RECURSIVE, None)
        os.close(own_root)
        root = _above_own_root()
        self._restrict(before, root, _NO_SUID | _NO_DEVICES | (_READ_ONLY if read_only else 0))
        return root

    def begin_empty(self) -> int:
        """Begin with an empty tree that can be written until `read_only`; return its root."""
        make_private(self._kernel)
        own_root = os.open("/", _REFERENCE)
        self._mount(b"tmpfs", own_root, b"tmpfs", _NO_SUID | _NO_DEVICES, b"mode=755")
        os.close(own_root)
        return _above_own_root()

    def bind(self, source: int, root: int, path: bytes, read_only: bool) -> None:
        """Bind the tree of `source` at a path, with the mounts below it."""
        before = _mounts()
        os.close(self._put(_link(source), root, path, None, _BIND | _RECURSIVE, None))
        self._restrict(before, root, _NO_SUID | _NO_DEVICES | (_READ_ONLY if read_only else 0))

    def bind_device(self, path: bytes, directory: int, name: bytes) -> None:
        """Bind a character device of the host over a file of a directory, and let it work there.

        Raises ENODEV for anything else.
        """
        device = os.open(path, _REFERENCE)
        try:
            check_device(device)
            self._bind_over(device, directory, name, _NO_SUID | _NO_EXEC)
        finally:
            os.close(device)

    def tmpfs(self, root: int, path: bytes, mode: int) -> int:
        """Mount an empty file system at a path; return its root."""
        return self._put(b"tmpfs", root, path, b"tmpfs", _NO_SUID | _NO_DEVICES, b"mode=%o" % mode)

    def proc(self, root: int, path: bytes) -> int:
        """Mount a procfs of the caller's pid namespace at a path; return its root."""
        return self._put(b"proc", root, path, b"proc", _NO_SUID | _NO_DEVICES | _NO_EXEC, None)

    def protect(self, mounted: int, names: Sequence[bytes]) -> None:
        """Make entries of the root of a mount read-only, by binding each over itself.

        Nobody else can change them, and none of them is a symlink.
        """
        for name in names:
            entry = os.open(name, _REFERENCE, dir_fd=mounted)
            try:
                self._bind_over(entry, mounted, name, _READ_ONLY)
            finally:
                os.close(entry)

    def terminals(self, root: int, path: bytes) -> None:
        """Mount a new, empty set of pseudo terminals at a path."""
        options = b"newinstance,ptmxmode=0666,mode=620"
        os.close(self._put(b"devpts", root, path, b"devpts", _NO_SUID | _NO_EXEC, options))

    def read_only(self, mounted: int) -> None:
        """Make a mount read-only, given its root; mounts below it stay as they are."""
        self._remount(mounted, _READ_ONLY)

    def enter(self, root: int) -> None:
        """Make the tree the root directory of this process and detach the host's."""
        enter(self._kernel, root)

    def _put(
        self, source: bytes, root: int, path: bytes, kind: bytes | None, flags: int, options: bytes | None
    ) -> int:
        target = self.open_in(root, path)
        try:
            self._mount(source, target, kind, flags, options)
        finally:
            os.close(target)
        return self.open_in(root, path)

    def _mount(
        self, source: bytes, target: int, kind: bytes | None, flags: int, options: bytes | None
    ) -> None:
        self._kernel.call("mount", source, _link(target), kind, flags, options)

    def _restrict(self, before: Sequence[_Mounted], root: int, flags: int) -> None:
        """Restrict every mount that was made since `before`.

        The list is all that tells them apart: the number of an open one (fdinfo) is hidden from processes
        that are not dumpable, as ours are, on the kernels that need this module.
        """
        known = set(before)
        made = [mounted for mounted in _mounts() if mounted not in known]
        for one in made:
            try:
                mounted = self.open_in(root, one[2])
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                    continue  # another mount covers it, so nobody can reach it
                raise
            try:
                self._remount(mounted, flags)
            except OSError as error:
                if error.errno != errno.EINVAL or not _is_covered(one, made):
                    raise
            finally:
                os.close(mounted)

    def _bind_over(self, source: int, directory: int, name: bytes, flags: int) -> None:
        target = os.open(name, _REFERENCE, dir_fd=directory)
        try:
            self._mount(_link(source), target, None, _BIND, None)
        finally:
            os.close(target)
        top = os.open(name, _REFERENCE, dir_fd=directory)
        try:
            self._remount(top, flags)
        finally:
            os.close(top)

    def _remount(self, mounted: int, flags: int) -> None:
        """Add restrictions to a mount."""
        # A remount drops the flags that are not given again, except those about access times.
        flags |= os.fstatvfs(mounted).f_flag & _KEPT
        self._kernel.call("mount", None, _link(mounted), None, _REMOUNT | _BIND | flags, None)


def _walk(directory: int, path: bytes) -> int:
    """Open a path below a directory; closes the directory.  Raises OSError ELOOP for a symlink anywhere."""
    for name in path.split(b"/"):
        if name in (b"", b"."):
            continue
        try:
            # A step up could leave the directory; plans have no such paths.
            if name == b"..":
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
            opened = os.open(name, _REFERENCE, dir_fd=directory)
        finally:
            os.close(directory)
        directory = opened
        if stat.S_ISLNK(os.fstat(directory).st_mode):
            os.close(directory)
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return directory


def _above_own_root() -> int:
    """Open what is mounted over the root directory: only the step up (`/..`) leads there."""
    return os.open("/..", _REFERENCE)


def _link(descriptor: int) -> bytes:
    return b"/proc/self/fd/%d" % descriptor


def _mounts() -> list[_Mounted]:
    """Return every mount of the namespace, in the kernel's order."""
    lines = (line.split(b" ") for line in read_file("/proc/self/mountinfo").splitlines())
    return [(int(fields[0]), int(fields[1]), unescaped(fields[4])) for fields in lines]


def _is_covered(one: _Mounted, made: Sequence[_Mounted]) -> bool:
    """Tell whether the path of a mount leads into another than the one that it is mounted on."""
    number, parent, path = one
    below = next((place for other, _, place in made if other == parent), b"/")
    return any(
        other not in (number, parent)
        and len(place) >= len(below)
        and path.startswith(place.rstrip(b"/") + b"/")
        for other, _, place in made
    )


def unescaped(path: bytes) -> bytes:
    """Undo the octal escapes in a path of mountinfo: blanks, tabs, line ends and backslashes."""
    first, *others = path.split(b"\\")
    return first + b"".join(bytes([int(part[:3], 8)]) + part[3:] for part in others)


def read_file(path: str) -> bytes:
    """Return the whole content of a file, as one of /proc, which tells no size."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = b""
        while piece := os.read(descriptor, 65536):
            content += piece
        return content
    finally:
        os.close(descriptor)
