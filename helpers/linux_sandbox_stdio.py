"""What a caller's files are to a confined command that has them as stdin, stdout or stderr.

An open file brings the mount it was opened on along: through `/proc/self/fd` it can be opened once more, for
writing too, whatever the view's mounts say.  So a file that was opened for reading only is read by a process
outside, and its content comes over a pipe; a folder leads to all of the machine and never comes along.  What
the caller has opened for writing is the command's to write.
"""

from __future__ import annotations

import fcntl
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_CHUNK = 1 << 16
_NULL = os.makedev(1, 3)
_HARMLESS = (stat.S_ISFIFO, stat.S_ISSOCK)  # a pipe; for a named one the same holds as for any other there


def shield(tie: Callable[[], None]) -> int:
    """Put what is harmless in the place of stdio that is not; return the pid of who passes stdin on, or 0.

    `tie` is called in that process, which the caller ends.  Raises OSError.
    """
    for number in (1, 2):
        if _leads_outside(number):
            _replace(number, os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC))
    if not _leads_outside(0):
        return 0
    if stat.S_ISDIR(os.fstat(0).st_mode) or fcntl.fcntl(0, fcntl.F_GETFL) & os.O_PATH:
        _replace(0, os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC))
        return 0
    into, out = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            tie()
            os.dup2(out, 1, inheritable=False)
            # No copy of a pipe may stay here whose end somebody waits for.
            os.closerange(2, max(into, out) + 1)
            _pass_on()
        finally:
            os._exit(0)
    os.close(out)
    _replace(0, into)
    return pid


def _leads_outside(number: int) -> bool:
    flags = fcntl.fcntl(number, fcntl.F_GETFL)
    if flags & os.O_PATH:
        return True
    found = os.fstat(number)
    if stat.S_ISDIR(found.st_mode):
        return True
    if flags & os.O_ACCMODE != os.O_RDONLY or any(is_kind(found.st_mode) for is_kind in _HARMLESS):
        return False
    return not (stat.S_ISCHR(found.st_mode) and (found.st_rdev == _NULL or os.isatty(number)))


def _replace(number: int, opened: int) -> None:
    os.dup2(opened, number)
    os.close(opened)


def _pass_on() -> None:
    """Write stdin to stdout from where it stands, which stays as it is for those who share the open file."""
    try:
        at = os.lseek(0, 0, os.SEEK_CUR)
    except OSError:
        at = -1  # a device that cannot be read from a place
    while data := os.read(0, _CHUNK) if at < 0 else os.pread(0, _CHUNK, at):
        at += len(data) if at >= 0 else 0
        view = memoryview(data)
        while view:
            view = view[os.write(1, view) :]
