"""Shields a confined command from open files of the caller that are its stdin, stdout or stderr.

An open file keeps the mount it was opened on.  Through `/proc/self/fd` it can be opened again, also for
writing, whatever the mounts of the sandbox root say.  So a process outside reads a file that was opened for
reading only, and passes its content through a pipe.  A folder leads to the whole machine and is never passed
on.  What the caller has opened for writing, the command may write.
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
_HARMLESS = (stat.S_ISFIFO, stat.S_ISSOCK)  # a pipe; a named one is no worse than others that are there


def shield(tie: Callable[[], None]) -> int:
    """Replace stdio that is not harmless; return the pid of the process that forwards stdin, or 0.

    `tie` is called in that process, which the caller kills and reaps.  Raises OSError.
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
            # No copies of pipes may stay here: others wait for their end.
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
    """Write stdin to stdout, from its file position."""
    # pread leaves the position alone, which others may share with this process.
    try:
        at = os.lseek(0, 0, os.SEEK_CUR)
    except OSError:
        at = -1  # a device without a position
    while data := os.read(0, _CHUNK) if at < 0 else os.pread(0, _CHUNK, at):
        at += len(data) if at >= 0 else 0
        view = memoryview(data)
        while view:
            view = view[os.write(1, view) :]
