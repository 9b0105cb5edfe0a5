"""The stand-in's program file: in memory, sealed, and another one for each exec.

A process inside can open it again through /proc, even for writing as the same user.  So nothing of it can be
changed, and what becomes of one (its mode, its locks) is nothing to the next.
"""

from __future__ import annotations

import errno
import fcntl
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.zygote.supervision.stand_in.code import Code

_MFD_CLOEXEC, _MFD_ALLOW_SEALING = 1, 2
_MFD_EXEC = 0x10  # needed where vm.memfd_noexec is 1, unknown before Linux 6.3
_ADD_SEALS = 1033
_SEALS = 0x0F  # against more seals, shrinking, growing and writing
_SEAL_EXEC = 0x20  # against another mode, since Linux 6.3
_NAME = "execserver-stand-in"


class StandInFile:
    """One such file, with the code of one machine; owns its descriptor, which cannot be written to.

    Raises OSError where the kernel executes no file in memory.
    """

    def __init__(self, code: Code) -> None:
        self.code = code
        writer = _new()
        try:
            os.write(writer, code.image)
            os.fchmod(writer, 0o555)  # one that its process could not read would hide that process from us
            _seal(writer)
            self.descriptor = os.open(b"/proc/self/fd/%d" % writer, os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(writer)  # nothing is executed that somebody has open for writing
        found = os.fstat(self.descriptor)
        self._identity = found.st_dev, found.st_ino

    def is_at(self, place: bytes | int) -> bool:
        """Return whether a path or a descriptor is this file; never raises."""
        try:
            found = os.stat(place)
        except OSError:
            return False
        # While the descriptor is open, no other file can get the number.
        return (found.st_dev, found.st_ino) == self._identity

    def close(self) -> None:
        """Close it; a second time is no error."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _new() -> int:
    flags = _MFD_CLOEXEC | _MFD_ALLOW_SEALING
    try:
        return os.memfd_create(_NAME, flags | _MFD_EXEC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.memfd_create(_NAME, flags)


def _seal(descriptor: int) -> None:
    try:
        fcntl.fcntl(descriptor, _ADD_SEALS, _SEALS | _SEAL_EXEC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        fcntl.fcntl(descriptor, _ADD_SEALS, _SEALS)
