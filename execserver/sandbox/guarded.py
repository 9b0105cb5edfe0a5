"""Where a path leads inside a view, and what no request may touch there, decided by descriptor.

The view's mounts already withhold what exists; this adds what mounts cannot: anything on procfs that belongs
to a process, protected names that do not exist yet, and deny patterns for files made after the view.  Links
are followed by hand, one component at a time, so a component swapped meanwhile leads nowhere unchecked: the
result is the descriptor of the parent directory and the last name, and the operation is done relative to it.
"""

from __future__ import annotations

import errno
import os
import stat

from execserver.sandbox.globs import compile_patterns
from execserver.sandbox.worker_records import BY_MISSING, BY_PATTERN, BY_PROCFS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from execserver.sandbox.plan import ViewPlan

# What a path is wanted for.
READ = 0
WRITE = 1
REMOVE = 2

MAX_LINKS = 40  # the kernel's own limit
_PASS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_STICKY_FOR_ALL = stat.S_ISVTX | stat.S_IWOTH
_NEW_DIRECTORY_MODE = 0o777
_MOUNTINFO = b"/proc/self/mountinfo"
_PROTECTED_SYMLINKS = b"/proc/sys/fs/protected_symlinks"
_PROCESS_LINKS = (b"self", b"thread-self")


class Denied(OSError):
    """Refused here and not by the kernel: the link-free path it is about, and why (BY_ constants)."""

    def __init__(self, number: int, path: bytes, reason: int) -> None:
        super().__init__(number, os.strerror(number))
        self.path = path
        self.reason = reason


class Place:
    """A name in a directory: where a path leads.  Owns the directory's descriptor until `close`.

    `path` is the link-free path of the name.  The name is `.` where the path is the directory itself.
    """

    __slots__ = ("_keep", "fd", "name", "path")

    def __init__(self, fd: int, name: bytes, path: bytes, keep: bool) -> None:
        self.fd = fd
        self.name = name
        self.path = path
        self._keep = keep

    def __enter__(self) -> Place:
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


class Guard:
    """The rules of one plan.  Owns a descriptor of the root; lives as long as the process.

    To be made inside the view.  Raises OSError where the view has no /proc.
    """

    def __init__(self, plan: ViewPlan) -> None:
        self.root = os.open(b"/", _PASS)
        # The link-free path an error is about, for explanations; not certain where a tree is gone through.
        self.at = b""
        self.certain = True
        self._denied = _matcher(plan) if plan.globs else None
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
    ) -> Place:
        """Return where an absolute path leads; the caller closes it.

        The last component need not exist, and is followed only with `follow`.  With `make`, missing
        directories on the way are made; without `links`, a link on the way is an error.  Raises OSError as
        the kernel would, or Denied.
        """
        resolution = _Resolution(self, wanted, make, links)
        try:
            return resolution.run(path, follow)
        except BaseException:
            self.at = resolution.reached
            resolution.close()
            raise

    def check_name(self, fd: int, name: bytes, path: bytes, wanted: int) -> None:
        """Raise for a protected name that did not exist when the view was made."""
        if name not in self._missing_names:
            return
        status = os.fstat(fd)
        there = self._missing.get((status.st_dev, status.st_ino), ())
        if name not in there and path not in self._missing_paths:
            return
        if wanted == READ or (wanted == REMOVE and not _exists(fd, name)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        raise Denied(errno.EROFS, path, BY_MISSING)

    def check_change(self, fd: int, name: bytes, path: bytes, wanted: int) -> None:
        """Raise OSError EROFS for a name to be made or removed in the view's own /dev: it would be lost."""
        if wanted == READ or not path.startswith(b"/dev/") or os.fstat(fd).st_dev != self._own_devices:
            return
        if wanted == REMOVE or not _exists(fd, name):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def hides(self, path: bytes) -> bool:
        """Tell whether a deny pattern matches a link-free path."""
        return self._denied is not None and self._denied(path)

    def check_pattern(self, path: bytes) -> None:
        """Raise Denied EACCES for a path that a deny pattern matches."""
        if self._denied is not None and self._denied(path):
            raise Denied(errno.EACCES, path, BY_PATTERN)

    def check_entry(self, fd: int, name: bytes, path: bytes, wanted: int) -> None:
        """Check a name in a directory that is being gone through."""
        self.check_name(fd, name, path, wanted)
        self.check_change(fd, name, path, wanted)
        self.check_pattern(path)

    def check_place(self, place: Place, status: os.stat_result, wanted: int = READ) -> None:
        """Raise Denied EACCES for what belongs to a process, given the status of the name.

        Nothing on procfs is changed, whoever owns it: OSError EROFS.
        """
        if status.st_dev in self._procfs:
            self._check_process(place.fd, place.name, place.path)
            _refuse_change(wanted)

    def check_opened(
        self, fd: int, path: bytes, wanted: int = READ, status: os.stat_result | None = None
    ) -> None:
        """Check an open descriptor as `check_place` does a name; `status` is what fstat gave for it."""
        if (status or os.fstat(fd)).st_dev in self._procfs:
            self._check_process(fd, b".", path)
            _refuse_change(wanted)

    def check_step(self, fd: int, name: bytes, path: bytes) -> None:
        """Raise Denied EACCES when a name of procfs leads to a process, or is a link in one."""
        if os.fstat(fd).st_dev in self._procfs:
            self._check_process(fd, name, path)

    def _check_process(self, fd: int, name: bytes, path: bytes) -> None:
        # The kernel's own word for where it is; a mount of procfs that is not ours is refused whole.
        try:
            where = os.readlink(b"/proc/self/fd/%d" % fd)
        except OSError:
            where = b""
        parts = (where if name == b"." else where.rstrip(b"/") + b"/" + name).split(b"/")
        ours = parts[:2] == [b"", b"proc"]
        if not ours or (len(parts) > 2 and is_process_name(parts[2])):
            raise Denied(errno.EACCES, path, BY_PROCFS)

    def check_link(self, fd: int, name: bytes, path: bytes) -> None:
        """Check a link before it is followed, also for what the kernel refuses in shared directories."""
        parent = os.fstat(fd)
        if parent.st_dev in self._procfs:
            self._check_process(fd, name, path)
        if self._strict_links and parent.st_mode & _STICKY_FOR_ALL == _STICKY_FOR_ALL:
            owner = os.stat(name, dir_fd=fd, follow_symlinks=False).st_uid
            if owner not in (os.geteuid(), parent.st_uid):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


class _Resolution:
    """One path on its way: the directory reached, its link-free path, and the names still to come."""

    __slots__ = (
        *("_fd", "_follows", "_guard", "_links", "_make", "_names", "_original", "_path", "_wanted"),
        "reached",
    )

    def __init__(self, guard: Guard, wanted: int, make: bool, follows: bool) -> None:
        self._guard = guard
        self._wanted = wanted
        self._make = make
        self._follows = follows  # links on the way
        self._fd = guard.root
        self._path = b""
        self._links = 0
        self._names: list[bytes] = []  # in reverse
        self._original = 0  # how many of them the caller wrote; those above came from links
        self.reached = b"/"

    def run(self, path: bytes, follow: bool) -> Place:
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
                return self._place(name)
        return self._place(b".")

    def close(self) -> None:
        self._move(self._guard.root)

    def _place(self, name: bytes) -> Place:
        path = (self._path or b"/") if name == b"." else self._path + b"/" + name
        self._guard.at = path
        if name != b".":
            self._guard.check_change(self._fd, name, path, self._wanted)
        return Place(self._fd, name, path, keep=self._fd == self._guard.root)

    def _move(self, fd: int) -> None:
        left, self._fd = self._fd, fd
        if left != self._guard.root:
            os.close(left)

    def _child(self, name: bytes) -> bytes:
        self.reached = self._path + b"/" + name
        self._guard.check_name(self._fd, name, self.reached, self._wanted)
        if name[:1].isdigit() or name in _PROCESS_LINKS:
            self._guard.check_step(self._fd, name, self.reached)
        return self.reached

    def _ascend(self) -> None:
        if self._path:
            self._move(os.open(b"..", _PASS, dir_fd=self._fd))
            self._path = self._path[: self._path.rindex(b"/")]

    def _descend(self, name: bytes, linked: bool) -> None:
        path = self._child(name)
        while True:
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
        if linked:  # mkdir meets the link itself, which leads nowhere
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        self._guard.check_pattern(self.reached)
        self._guard.check_change(self._fd, name, self.reached, self._wanted)
        try:
            os.mkdir(name, _NEW_DIRECTORY_MODE, dir_fd=self._fd)
        except FileExistsError:
            if not stat.S_ISDIR(os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_mode):
                raise

    def _follow_last(self, name: bytes, follow: bool) -> bool:
        """Follow the last name if it is a link; tell whether it was one."""
        self._child(name)
        return follow and self._follow(name)

    def _follow(self, name: bytes) -> bool:
        """Put what a link says in its place; False if the name is no link, or nothing."""
        try:
            target = os.readlink(name, dir_fd=self._fd)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOENT):
                raise
            return False
        self._links += 1
        if self._links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        self._guard.check_link(self._fd, name, self.reached)
        names = [part for part in reversed(target.split(b"/")) if part]
        if target.endswith(b"/"):
            names.insert(0, b".")  # it must be a directory
        if target.startswith(b"/"):
            self._move(self._guard.root)
            self._path = b""
        self._names += names
        return True


def _matcher(plan: ViewPlan) -> Callable[[bytes], bool]:
    """Return what tells whether a deny pattern is the last word about a path."""
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
    fd = os.open(_MOUNTINFO, os.O_RDONLY | os.O_CLOEXEC)
    try:
        table = b""
        while piece := os.read(fd, 65536):
            table += piece
    finally:
        os.close(fd)
    devices = set()
    for line in table.splitlines():
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
        return True
    try:
        return os.read(fd, 16).strip() != b"0"
    except OSError:
        return True
    finally:
        os.close(fd)
