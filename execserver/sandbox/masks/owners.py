"""Who owns mask records, and whether that process still lives.

A lock would tell, too, but whoever can open its file can take it: under Landlock at least, a sandboxed
command of the same user.  So an owner is known by what nobody can hold or forge: its pid and start time.
An owner in another pid namespace cannot be looked up that way; only there its lock decides.
"""

from __future__ import annotations

import fcntl
import os

LOCK = b"lock"
_PARTS = 5  # of an owner's name: pid, start time, pid namespace, boot, random
_PID_DIGITS = 7  # of the kernel's largest pid, 4194304
_STATE, _STARTED = 0, 19  # fields of /proc/PID/stat, counted from behind the name
_ENDED = (b"Z", b"X")  # a zombie uses nothing any more
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_NAMESPACE = "/proc/self/ns/pid"
_STAT_BYTES = 4096


def new_name() -> bytes:
    """Return a new name for a folder that this process owns.  Raises OSError without /proc."""
    # The pid from /proc, since that is where others will look for it.
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
        return _is_locked(path)  # made by a version that knew its owners by their locks
    try:
        namespace, boot = _surroundings().split(b"-")
        if parts[3] != boot:
            return False  # a pid of an earlier boot means nothing
        if parts[2] != namespace:
            return _is_locked(path)
        found = _behind_name(_read(f"/proc/{int(parts[0])}/stat"))
    except OSError:
        # No such process, or a /proc that shows not even our own.
        return _exists(int(parts[0])) and _is_locked(path)
    # The start time, because the kernel gives a pid out again.
    return found[_STARTED] == parts[1] and found[_STATE] not in _ENDED


def _surroundings() -> bytes:
    """Return pid namespace and boot, within which a pid means the same as here."""
    return b"%d-%b" % (os.stat(_NAMESPACE).st_ino, _read(_BOOT_ID).replace(b"-", b"").strip())


def _behind_name(stat: bytes) -> list[bytes]:
    # The last bracket: a process can have brackets and blanks in its name.
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
    """Tell whether somebody holds the lock in a folder; True also when it has no lock file (yet)."""
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
