"""Who owns records of placeholders, and whether that process still lives.

A lock would tell, too, but whoever can open its file can take it: a sandboxed command of the same user, under
Landlock at least.  So an owner is told by what nobody can hold or forge: its pid and the time it started.
Only what runs in another pid namespace cannot be looked up that way; there its lock decides.
"""

from __future__ import annotations

import fcntl
import os

LOCK = b"lock"
_PARTS = 5
_PID_DIGITS = 7  # of the kernel's largest, 4194304
_STATE, _STARTED = 0, 19  # in /proc/PID/stat, behind the name
_ENDED = (b"Z", b"X")
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_NAMESPACE = "/proc/self/ns/pid"
_STAT_BYTES = 4096


def new_name() -> bytes:
    """Return a new name for the folder of something this process owns.  Raises OSError without /proc."""
    content = _read("/proc/self/stat")
    pid, started = int(content.split(b" ", 1)[0]), _behind_name(content)[_STARTED]
    return b"%d-%b-%b-%b" % (pid, started, _surroundings(), os.urandom(4).hex().encode())


def left_name() -> bytes:
    """Return a new name for a folder that nobody owns any more."""
    return b"left-" + os.urandom(4).hex().encode()


def lives(path: bytes) -> bool:
    """Tell whether the owner of a folder lives; True where that cannot be known."""
    parts = os.path.basename(path).split(b"-")
    if parts[0] == b"left":
        return False
    if len(parts) != _PARTS or not parts[0].isdigit() or len(parts[0]) > _PID_DIGITS:
        return _is_locked(path)  # of a version that knew its owners by their locks
    try:
        namespace, boot = _surroundings().split(b"-")
        if parts[3] != boot:
            return False
        if parts[2] != namespace:
            return _is_locked(path)
        found = _behind_name(_read(f"/proc/{int(parts[0])}/stat"))
    except OSError:
        return _exists(int(parts[0])) and _is_locked(path)  # or /proc shows not even our own processes
    return found[_STARTED] == parts[1] and found[_STATE] not in _ENDED


def _surroundings() -> bytes:
    """Return in which pid namespace, and since which boot, pids mean what they mean to us."""
    return b"%d-%b" % (os.stat(_NAMESPACE).st_ino, _read(_BOOT_ID).replace(b"-", b"").strip())


def _behind_name(stat: bytes) -> list[bytes]:
    return stat.rpartition(b")")[2].split()


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _is_locked(path: bytes) -> bool:
    """Tell whether somebody holds the lock in a folder; True also when there is none yet."""
    try:
        fd = os.open(path + b"/" + LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _STAT_BYTES)
    finally:
        os.close(fd)
