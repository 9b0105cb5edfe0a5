"""Is a path on a local file system?  This decides what may run in the event loop's thread.

The kernel's mount table is read once, and again after every change, which the kernel reports exactly.  As
long as no slow file system is mounted anywhere, every path is local.  Otherwise a symlink may lead to one, so
a path counts as local only if none of its parts is a symlink or the mount point of a slow file system.  Parts
are examined from the root on, so that this never touches a slow file system.  (A part that is swapped for
such a symlink between check and use can delay the server; only a process that may write there can do that.)
"""

from __future__ import annotations

import os
import select
import stat

MOUNT_TABLE = b"/proc/self/mountinfo"

# File systems whose answers come from memory or from a disk of this machine.  All others are slow: those of
# the network, those served by a program (fuse), mounts made on first use (autofs), and unknown ones.
LOCAL_TYPES = frozenset(
    b"ext2 ext3 ext4 xfs btrfs zfs f2fs bcachefs jfs reiserfs nilfs2 minix udf iso9660 vfat msdos exfat "
    b"ntfs3 hfs hfsplus squashfs erofs cramfs romfs overlay aufs tmpfs ramfs rootfs devtmpfs devpts mqueue "
    b"hugetlbfs proc sysfs cgroup cgroup2 cpuset securityfs debugfs tracefs configfs pstore efivarfs bpf "
    b"selinuxfs smackfs binfmt_misc fusectl nsfs binder resctrl".split()
)
_READ_BYTES = 64 * 1024


class MountTable:
    """The mounts this process sees.  Owns one descriptor until `close`."""

    def __init__(self, table: bytes = MOUNT_TABLE, local_types: frozenset[bytes] = LOCAL_TYPES) -> None:
        self._local_types = local_types
        self._generation = 0
        self._poll = select.poll()
        # Where slow file systems are mounted; None if unknown: then no path is certainly local.
        self._slow_points: frozenset[bytes] | None = None
        self._local_devices: frozenset[int] = frozenset()
        try:
            self._fd = os.open(table, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # no /proc
            self._fd = -1
            return
        self._poll.register(self._fd, select.POLLPRI)  # how the kernel reports a change of this table
        self._read()

    def is_local(self, path: bytes) -> bool:
        """Return whether using an absolute path certainly touches local file systems only."""
        slow_points = self._current()
        if slow_points is None:
            return False
        return not slow_points or _stays_apart(path, slow_points)

    def all_local(self) -> bool:
        """Return whether no slow file system is mounted at all."""
        return self._current() == frozenset()

    def generation(self) -> int:
        """Return a number that differs after every change of the mounts."""
        self._current()
        return self._generation

    def is_local_device(self, device: int) -> bool:
        """Return whether an open file with this `st_dev` is certainly on a local file system."""
        return self._current() is not None and device in self._local_devices

    def close(self) -> None:
        """Close the descriptor; from then on no path is certainly local."""
        fd, self._fd = self._fd, -1
        self._slow_points = None
        if fd >= 0:
            self._poll.unregister(fd)
            os.close(fd)

    def _current(self) -> frozenset[bytes] | None:
        # The kernel marks the open table as soon as a mount changes, and clears the mark when it is polled.
        if self._poll.poll(0):
            self._read()
        return self._slow_points

    def _read(self) -> None:
        self._generation += 1
        os.lseek(self._fd, 0, os.SEEK_SET)
        parts = []
        while data := os.read(self._fd, _READ_BYTES):
            parts.append(data)
        slow_points = set()
        devices: dict[int, bool] = {}
        for device, point, kind in parse_mounts(b"".join(parts)):
            local = kind in self._local_types
            devices[device] = devices.get(device, True) and local  # one device may be mounted many times
            if not local:
                slow_points.add(point)
        self._slow_points = frozenset(slow_points)
        self._local_devices = frozenset(device for device, local in devices.items() if local)


def parse_mounts(table: bytes) -> list[tuple[int, bytes, bytes]]:
    """Return device, mount point and file system type of every line of a mountinfo table."""
    mounts = []
    for line in table.splitlines():
        # Optional fields stand before the lone dash, in any number; what follows it has fixed places.
        fields, _, filesystem = line.partition(b" - ")
        major, _, minor = fields.split(b" ", 3)[2].partition(b":")
        point = _unescape(fields.split(b" ", 5)[4])
        mounts.append((os.makedev(int(major), int(minor)), point, filesystem.split(b" ", 1)[0]))
    return mounts


def _unescape(text: bytes) -> bytes:
    """Undo the octal escapes of the table: space, tab, line end, backslash."""
    first, *rest = text.split(b"\\")
    return first + b"".join(bytes((int(part[:3], 8),)) + part[3:] for part in rest)


def _stays_apart(path: bytes, slow_points: frozenset[bytes]) -> bool:
    """Return whether no part of a normalised path is a slow mount, or a symlink that might lead to one."""
    if b"/" in slow_points:
        return False
    end = 0
    while 0 <= end < len(path) and path != b"/":
        end = path.find(b"/", end + 1)
        part = path if end < 0 else path[:end]
        if part in slow_points:
            return False
        try:
            if stat.S_ISLNK(os.lstat(part).st_mode):
                return False
        except (FileNotFoundError, NotADirectoryError):
            return True  # nothing beyond it can be reached
        except OSError:
            return False
    return True
