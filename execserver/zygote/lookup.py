"""Which file a program name means (wire contract, section 8.1).

Without a terminal the rules are execvp's with the child's own PATH.  Several files may have to be tried, so
the candidates are a list and the exec decides.  With a terminal the file is chosen before the start, every
refusal has a reason of its own, and a name with a slash that does not begin with `.` or `..` is still
searched in PATH.  Relative candidates are relative to the child's cwd.
"""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_PATH = b"/usr/local/bin:/bin:/usr/bin"  # the reference's C library uses it when there is no PATH
_NAME_MAX = 255
_PATH_MAX = 4096

# Why a terminal program was refused.
NOT_IN_PATH = 1
NO_PATH = 2
MISSING = 3
MISSING_RELATIVE = 4
NOT_EXECUTABLE = 5
NOT_EXECUTABLE_RELATIVE = 6
IS_DIRECTORY = 7

# What a candidate in PATH turned out to be; the first byte of a detail about it.
NOTE_DIRECTORY = b"d"
NOTE_NOT_EXECUTABLE = b"x"


class LookupRefused(Exception):
    """There is no file to run for a terminal.

    `details` holds the refused name; for NOT_IN_PATH also PATH, and the candidates that were there, each
    behind a NOTE_* byte.
    """

    def __init__(self, reason: int, number: int, *details: bytes) -> None:
        super().__init__(reason)
        self.reason = reason
        self.errno = number
        self.details = details


def env_value(env: Sequence[bytes], name: bytes) -> bytes | None:
    """Return the first value of a name, as getenv reads raw `name=value` entries."""
    prefix = name + b"="
    for entry in env:
        if entry.startswith(prefix):
            return entry[len(prefix) :]
    return None


def pipe_candidates(program: bytes, path: bytes | None) -> list[bytes]:
    """Return the files that execvp would try, in order; a name that cannot exist raises OSError."""
    if b"/" in program or not program:
        return [program]
    if len(program) > _NAME_MAX:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    elements = (DEFAULT_PATH if path is None else path).split(b":")
    # An empty element means the cwd.
    return [
        element + b"/" + program if element else program for element in elements if len(element) < _PATH_MAX
    ]


def terminal_program(program: bytes, cwd: bytes, path: bytes | None) -> bytes:
    """Return the absolute path to run for a terminal process, or raise LookupRefused."""
    if program.startswith(b"/"):
        return _absolute(program)
    if program.split(b"/", 1)[0] in (b".", b".."):
        return _relative(os.path.join(cwd, program))
    if path is None:
        raise LookupRefused(NO_PATH, errno.ENOENT, program)
    notes = []
    for element in path.split(b":"):
        candidate = os.path.join(cwd, element, program)
        if is_directory(candidate):
            notes.append(NOTE_DIRECTORY + candidate)
        elif os.access(candidate, os.X_OK):
            return candidate
        elif os.access(candidate, os.F_OK):
            notes.append(NOTE_NOT_EXECUTABLE + candidate)
    raise LookupRefused(NOT_IN_PATH, errno.ENOENT, program, path, *notes)


def is_directory(path: bytes) -> bool:
    """Return whether the path leads to a directory; never raises."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def passwd_entry(table: bytes, uid: int) -> tuple[bytes, bytes]:
    """Return home and shell of a user from the text of /etc/passwd; `/` and `/bin/sh` if not listed."""
    for line in table.splitlines():
        fields = line.split(b":")
        if len(fields) >= 7 and fields[2] == b"%d" % uid:
            return fields[5] or b"/", fields[6] or b"/bin/sh"
    return b"/", b"/bin/sh"


def _absolute(program: bytes) -> bytes:
    if is_directory(program):
        raise LookupRefused(IS_DIRECTORY, errno.EISDIR, program)
    if os.access(program, os.X_OK):
        return program
    exists = os.access(program, os.F_OK)
    number = errno.EACCES if exists else _stat_errno(program)
    raise LookupRefused(NOT_EXECUTABLE if exists else MISSING, number, program)


def _relative(program: bytes) -> bytes:
    if is_directory(program):
        raise LookupRefused(IS_DIRECTORY, errno.EISDIR, program)
    if os.access(program, os.X_OK):
        return program
    exists = os.access(program, os.F_OK)
    raise LookupRefused(NOT_EXECUTABLE_RELATIVE if exists else MISSING_RELATIVE, errno.ENOENT, program)


def _stat_errno(path: bytes) -> int:
    """Return why a path cannot be accessed: os.access hides it, and stat walks the same path."""
    try:
        os.stat(path)
    except OSError as error:
        return error.errno or errno.ENOENT
    return errno.ENOENT
