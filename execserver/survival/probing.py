"""Whether what survives a crash can be kept on this machine, tried out before anything is started."""

from __future__ import annotations

import os
import pty
import resource
import tty

from execserver.survival.journal import memory_file

_WORDS = b"words"
_LEAST_FILE_BYTES = 64 * 1024 * 1024  # of a memory file with output or input


def objection() -> str | None:
    """Return why nothing can be kept here; None if it can."""
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft != resource.RLIM_INFINITY and soft < _LEAST_FILE_BYTES:
        return f"files are limited to {soft} bytes (ulimit -f), memory files too"
    try:
        moved = _moved()
    except OSError as error:
        return f"this kernel does not move what terminals say into memory files ({error.strerror})"
    return None if moved == _WORDS else "this kernel moves something else into memory files than was written"


def _moved() -> bytes:
    """Send words to a terminal by way of a memory file, and take them back by way of another."""
    master, slave = pty.openpty()
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    source, target = memory_file(), memory_file()
    try:
        tty.setraw(slave)
        os.write(source, _WORDS)
        os.lseek(source, 0, os.SEEK_SET)
        os.sendfile(writer, source, None, 2)
        os.splice(reader, target, 2, flags=os.SPLICE_F_NONBLOCK)
        os.sendfile(master, source, None, 1)
        os.write(slave, os.read(slave, 1) + _WORDS[3:])
        moved = os.splice(master, writer, 100, flags=os.SPLICE_F_NONBLOCK)
        os.splice(reader, target, moved, flags=os.SPLICE_F_NONBLOCK)
        return os.pread(target, os.lseek(target, 0, os.SEEK_CUR), 0)
    finally:
        for fd in (master, slave, reader, writer, source, target):
            os.close(fd)
