"""The path guard: resolves a path inside a sandbox root and refuses what no request may touch there.

Mounts already withhold what exists.  The guard adds what mounts cannot: whatever on procfs belongs to a
process, protected names that do not exist yet, and deny patterns for files made after the sandbox root.

It follows symlinks by hand, one component at a time, so a component that is swapped meanwhile leads nowhere
unchecked.  The result is a descriptor of the parent directory and the last name; the operation uses these.
"""

from __future__ import annotations

import errno
import os
import stat

from execserver.sandbox.files.worker_records import BY_MISSING, BY_PATTERN, BY_PROCFS
from execserver.sandbox.kernel.mounts_old import read_file
from execserver.sandbox.policy.globs import compile_patterns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from execserver.sandbox.plan import SandboxPlan

# What a path is wanted for.
READ = 0
WRITE = 1
REMOVE = 2

MAX_LINKS = 40  # the kernel's own limit
_PASS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC  # 2 us a component, on every kernel
_STICKY_FOR_ALL = stat.S_ISVTX | stat.S_IWOTH  # a shared directory such as /tmp
_NEW_DIRECTORY_MODE = 0o777
_MOUNTINFO = "/proc/self/mountinfo"
_PROTECTED_SYMLINKS = b"/proc/sys/fs/protected_symlinks"
_PROCESS_LINKS = (b"self", b"thread-self")


class Denied(OSError):
    """A refusal by the guard, not by the kernel: `path` is free of symlinks, `reason` a BY_ constant."""

    def __init__(self, number: int, path: bytes, reason: int) -> None:
        super().__init__(number, os.strerror(number))
        self.path = path
        self.reason = reason


class ResolvedName:
    """A resolved path: a name in an open directory.  Owns the directory's descriptor until `close`.

    `path` has no symlinks.  `name` is `.` where the path is the directory itself.  With `keep` the
    descriptor is somebody else's.
    """

    __slots__ = ("_keep", "fd", "name", "path")

    def __init__(self, fd: int, name: bytes, path: bytes, keep: bool) -> None:
        self.fd = fd
        self.name = name
        self.path = path
        self._keep = keep

    def __enter__(self) -> ResolvedName:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def status(self) -> os.stat_result:
        """Return the status of the name itself.  Raises OSError."""
        if self.name == b".":
            return os.fstat(self.fd)
        return os.stat(self.name, dir_fd=self.fd, follow_symlinks=False)

    def close(self) -> None:
        """Close the directory."""
        if not self._keep:
            os.close(self.fd)


class PathGuard:
    """The rules of one plan.  Owns a descriptor of the root; lives as long as the process.

    Made inside the sandbox root.  Raises OSError where that has no /proc.
    """

    def __init__(self, plan: SandboxPlan) -> None:
        self.root = os.open(b"/", _PASS)
        # The path without symlinks that an error is about, for explanations; not certain inside a tree walk.
        self.at = b""
        self.certain = True
        self._denied = _matcher(plan) if plan.globs else None
        # By device and inode of the parent as well as by path: neither renaming the parent nor reaching it
        # by another path frees a protected name.
        self._missing: dict[tuple[int, int], set[bytes]] = {}
        for missing in plan.missing:
            self._missing.setdefault(missing.parent[:2], set()).add(os.path.basename(missing.path))
        self._missing_paths = frozenset(missing.path for missing in plan.missing)
        self._missing_names = frozenset(os.path.basename(path) for path in self._missing_paths)
        self._procfs = _procfs_devices()
        self._strict_links = _reads_as_one(_PROTECTED_SYMLINKS)
        self._own_devices = _device_of(b"/dev")

    def find(
        self, path: bytes, wanted: int, follow: bool = True, make: bool = False, links: bool = True
    ) -> ResolvedName:
        """Resolve an absolute path; the caller closes the result.

        The last component need not exist, and is followed only with `follow`.  With `make`, missing
        directories on the way are made.  Without `links`, a symlink on the way is an error.  Raises OSError
        as the kernel would, or Denied.  `wanted` is READ, WRITE or REMOVE.
        """
        resolution = _Resolution(self, wanted, make, links)
        try:
            return resolution.run(path, follow)
        except BaseException:
            self.at = resolution.reached
            resolution.close()
            raise

    def check_name(self, fd: int, name: bytes, path: bytes, wanted: int) -> None:
        """Raise FileNotFoundError or Denied for a protected name that the plan found missing."""
        if name not in self._missing_names:
            return
        status = os.fstat(fd)
        there = self._missing.get((status.st_dev, status.st_ino), ())
        if name not in there and path not in self._missing_paths:
            return
        # Also if it exists now: as a command's mask target, or made since; then the next call has a new plan.
        if wanted == READ or (wanted == REMOVE and not _exists(fd, name)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        raise Denied(errno.EROFS, path, BY_MISSING)

    def check_change(self, fd: int, name: bytes, path: bytes, wanted: int) -> None:
        """Raise OSError EROFS for a name to be made or removed in the sandbox root's own /dev."""
        # It would be lost with this worker, and no command would see it.
        if wanted == READ or not path.startswith(b"/dev/") or os.fstat(fd).st_dev != self._own_devices:
            return
        if wanted == REMOVE or not _exists(fd, name):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def hides(self, path: bytes) -> bool:
        """Tell whether a deny pattern matches a path without symlinks."""
        return self._denied is not None and self._denied(path)

    def check_pattern(self, path: bytes) -> None:
        """Raise Denied EACCES for a path that a deny pattern matches."""
        if self._denied is not None and self._denied(path):
            raise Denied(errno.EACCES, path, BY_PATTERN)

    def check_entry(self, fd: int, name: bytes, path: bytes, wanted: int) -> None:
        """Check a name in a directory of a tree walk.  Raises as the three checks do."""
        self.check_name(fd, name, path, wanted)
        self.check_change(fd, name, path, wanted)
        self.check_pattern(path)

    def check_resolved(self, resolved: ResolvedName, status: os.stat_result, wanted: int = READ) -> None:
        """Raise Denied EACCES for what belongs to a process; `status` is that of the name.

        Raises OSError EROFS for any change on procfs, whoever owns the file.
        """
        if status.st_dev in self._procfs:  # by device: no spelling, symlink or mount hides a procfs
            self._check_process(resolved.fd, resolved.name, resolved.path)
            _refuse_change(wanted)

    def check_opened(
        self, fd: int, path: bytes, wanted: int = READ, status: os.stat_result | None = None
    ) -> None:
        """Check an open descriptor as `check_resolved` does a name; a known `status` saves an fstat."""
        if (status or os.fstat(fd)).st_dev in self._procfs:
            self._check_process(fd, b".", path)
            _refuse_change(wanted)

    def check_step(self, fd: int, name: bytes, path: bytes) -> None:
        """Raise Denied EACCES when a name on procfs leads to a process, or is a symlink in one."""
        if os.fstat(fd).st_dev in self._procfs:
            self._check_process(fd, name, path)

    def _check_process(self, fd: int, name: bytes, path: bytes) -> None:
        # Asks the kernel where the descriptor is.  A procfs that is not at /proc is refused as a whole.
        try:
            where = os.readlink(b"/proc/self/fd/%d" % fd)
        except OSError:
            where = b""  # is not below /proc either
        parts = (where if name == b"." else where.rstrip(b"/") + b"/" + name).split(b"/")
        ours = parts[:2] == [b"", b"proc"]
        if not ours or (len(parts) > 2 and is_process_name(parts[2])):
            raise Denied(errno.EACCES, path, BY_PROCFS)

    def check_link(self, fd: int, name: bytes, path: bytes) -> None:
        """Check a symlink before it is followed.  Raises Denied, or PermissionError."""
        parent = os.fstat(fd)
        if parent.st_dev in self._procfs:
            self._check_process(fd, name, path)
        # The rule of `fs.protected_symlinks`: the kernel applies it only to symlinks that it follows itself.
        if self._strict_links and parent.st_mode & _STICKY_FOR_ALL == _STICKY_FOR_ALL:
            owner = os.stat(name, dir_fd=fd, follow_symlinks=False).st_uid
            if owner not in (os.geteuid(), parent.st_uid):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


class _Resolution:
    """One path being resolved: the directory reached, its path without symlinks, and the names to come."""

    __slots__ = (
        *("_fd", "_follows", "_guard", "_links", "_make", "_names", "_original", "_path", "_wanted"),
        "reached",
    )

    def __init__(self, guard: PathGuard, wanted: int, make: bool, follows: bool) -> None:
        self._guard = guard
        self._wanted = wanted
        self._make = make
        self._follows = follows  # symlinks on the way
        self._fd = guard.root
        self._path = b""  # of `_fd`; empty for the root
        self._links = 0
        self._names: list[bytes] = []  # in reverse
        self._original = 0  # how many of them the caller wrote; those above came from symlinks
        self.reached = b"/"  # what an error is about

    def run(self, path: bytes, follow: bool) -> ResolvedName:
        self._names = [name for name in reversed(path.split(b"/")) if name]
        self._original = len(self._names)
        while self._names:
            linked = len(self._names) > self._original
            name = self._names.pop()
            self._original = min(self._original, len(self._names))
            if name == b".":
                continue
            if name == b"..":
                self._ascend()
            elif self._names:
                self._descend(name, linked)
            elif not self._follow_last(name, follow):
                return self._resolved(name)
        return self._resolved(b".")

    def close(self) -> None:
        self._move(self._guard.root)

    def _resolved(self, name: bytes) -> ResolvedName:
        path = (self._path or b"/") if name == b"." else self._path + b"/" + name
        self._guard.at = path
        if name != b".":
            self._guard.check_change(self._fd, name, path, self._wanted)
        return ResolvedName(self._fd, name, path, keep=self._fd == self._guard.root)

    def _move(self, fd: int) -> None:
        left, self._fd = self._fd, fd
        if left != self._guard.root:
            os.close(left)

    def _child(self, name: bytes) -> bytes:
        self.reached = self._path + b"/" + name
        self._guard.check_name(self._fd, name, self.reached, self._wanted)
        # Only these names lead into a process: others need no system call here.
        if name[:1].isdigit() or name in _PROCESS_LINKS:
            self._guard.check_step(self._fd, name, self.reached)
        return self.reached

    def _ascend(self) -> None:
        if self._path:  # as for the kernel, `..` of the root is the root
            self._move(os.open(b"..", _PASS, dir_fd=self._fd))
            self._path = self._path[: self._path.rindex(b"/")]

    def _descend(self, name: bytes, linked: bool) -> None:
        path = self._child(name)
        while True:
            # ENOTDIR is a symlink or no directory.  Each turn looks anew: what is there may have changed.
            try:
                fd = os.open(name, _PASS, dir_fd=self._fd)
            except (NotADirectoryError, FileNotFoundError) as error:
                if error.errno == errno.ENOENT:
                    self._make_directory(name, linked, error)
                    continue
                if not self._follows or not self._follow(name):
                    raise
                return
            self._move(fd)
            self._path = path
            return

    def _make_directory(self, name: bytes, linked: bool, error: OSError) -> None:
        if not self._make:
            raise error
        if linked:  # mkdir would find the symlink itself, which leads nowhere
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        self._guard.check_pattern(self.reached)
        self._guard.check_change(self._fd, name, self.reached, self._wanted)
        try:
            os.mkdir(name, _NEW_DIRECTORY_MODE, dir_fd=self._fd)
        except FileExistsError:  # somebody else has just made it
            if not stat.S_ISDIR(os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_mode):
                raise

    def _follow_last(self, name: bytes, follow: bool) -> bool:
        """Follow the last name if it is a symlink; tell whether it was one."""
        self._child(name)
        return follow and self._follow(name)

    def _follow(self, name: bytes) -> bool:
        """Replace a name by the target of the symlink there; False if there is no symlink."""
        try:
            target = os.readlink(name, dir_fd=self._fd)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOENT):  # EINVAL: something else
                raise
            return False
        self._links += 1
        if self._links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        self._guard.check_link(self._fd, name, self.reached)
        names = [part for part in reversed(target.split(b"/")) if part]
        if target.endswith(b"/"):
            names.insert(0, b".")  # it must be a directory
        if target.startswith(b"/"):  # the sandbox root's, which the kernel would take, too
            self._move(self._guard.root)
            self._path = b""
        self._names += names
        return True


def _matcher(plan: SandboxPlan) -> Callable[[bytes], bool]:
    """Return a function that tells whether a deny pattern decides about a path."""
    patterns = compile_patterns(plan.globs)
    rules = frozenset((*plan.writable, *plan.readable, *plan.read_only))

    def denied(path: bytes) -> bool:
        matched = patterns.deepest(path)
        if matched is None:
            return False
        # A rule for something further down counts more than a pattern that matched above it.
        while len(path) > len(matched[0]):
            if path in rules:
                return False
            path = path[: path.rindex(b"/")]
        return True

    return denied


def is_process_name(name: bytes) -> bool:
    """Tell whether a name at the top of procfs stands for a process."""
    return name.isdigit() or name in _PROCESS_LINKS


def _refuse_change(wanted: int) -> None:
    if wanted != READ:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def _exists(fd: int, name: bytes) -> bool:
    try:
        os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _procfs_devices() -> frozenset[int]:
    """Return the device numbers of every procfs that is mounted in this view."""
    devices = set()
    for line in read_file(_MOUNTINFO).splitlines():
        fields, _, filesystem = line.partition(b" - ")
        if filesystem.startswith(b"proc "):
            major, _, minor = fields.split(b" ", 3)[2].partition(b":")
            devices.add(os.makedev(int(major), int(minor)))
    return frozenset(devices)


def _device_of(path: bytes) -> int:
    try:
        return os.stat(path).st_dev
    except OSError:
        return -1


def _reads_as_one(path: bytes) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True  # unknown: the stricter rule
    try:
        return os.read(fd, 16).strip() != b"0"
    except OSError:
        return True
    finally:
        os.close(fd)
