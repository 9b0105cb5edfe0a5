"""The file that is to take a server's place: opened once, looked at, asked, and executed, all by descriptor.

Whatever happens to its name meanwhile, what was looked at is what runs.  A file that is one program, as
dist/execserver, is all there is to look at; a script only names an interpreter, and what that reads besides
is as it is at each start.  Standard library only.
"""

from __future__ import annotations

import os
import stat

from execserver.own_start import OwnStart
from execserver.runtime_paths import CAN_RESUME_ARGUMENT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

ANSWER = "execserver resumes"  # and the version of the state
_ROOT = 0
_OPENED = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY  # not kept up by a FIFO


class BadProgram(Exception):
    """The file cannot take a server's place; the text says why."""


class Program:
    """An open file, and the words to start it with.  Owns its descriptor until `close`."""

    def __init__(self, fd: int, shown: str, before: list[str], arguments: list[str]) -> None:
        """`before` are the words before the arguments.  Raises BadProgram; the descriptor is closed then."""
        self.fd = fd
        self.shown = shown
        self._before = before
        self._arguments = arguments
        try:
            self._facts = _facts(os.fstat(fd))
            _check(os.fstat(fd), fd, shown)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def given(cls, fd: int, shown: str, own: OwnStart) -> Program:
        """Return a file that somebody has opened, to be started with the arguments of this server."""
        # It is called as this program was: the name decides what a program is.
        name = own.words if len(own.words) == 1 else [shown]
        return cls(fd, shown, name, own.arguments)

    @classmethod
    def own(cls, start: OwnStart) -> Program:
        """Return the file that this server was started from, as it is now.  Raises BadProgram."""
        try:
            fd = os.open(start.file, _OPENED)
        except OSError as error:
            raise BadProgram(f"{start.file} cannot be read: {error.strerror}") from None
        return cls(fd, start.file, start.words, start.arguments)

    @property
    def path(self) -> str:
        """The name of the file for an exec, which stands for the descriptor."""
        return f"/proc/self/fd/{self.fd}"

    @property
    def words(self) -> list[str]:
        """The words for the exec."""
        return [*self._before, *self._arguments]

    def asking(self, version: int) -> list[str]:
        """Return the words that ask whether it reads a version of the state, and takes the arguments."""
        return [*self._before, CAN_RESUME_ARGUMENT, str(version), *self._arguments]

    def check_again(self) -> None:
        """Raise BadProgram if somebody has written to the file since it was opened."""
        if _facts(os.fstat(self.fd)) != self._facts:
            raise BadProgram(f"{self.shown} was changed while it was looked at")

    def execute(self, environ: Mapping[str, str]) -> None:
        """Become the program; returns only by raising OSError."""
        # A script is opened by its interpreter, by the name of this descriptor.
        os.set_inheritable(self.fd, True)
        try:
            os.execve(self.path, self.words, environ)
        finally:
            os.set_inheritable(self.fd, False)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)


def _check(found: os.stat_result, fd: int, shown: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise BadProgram(f"{shown} is no file")
    if found.st_uid not in (_ROOT, os.geteuid()):
        raise BadProgram(f"{shown} belongs to another user")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BadProgram(f"{shown} can be written by others (mode {stat.S_IMODE(found.st_mode):04o})")
    if not os.access(f"/proc/self/fd/{fd}", os.X_OK):
        raise BadProgram(f"{shown} is not executable")


def _facts(found: os.stat_result) -> tuple[int, ...]:
    return (
        *(found.st_dev, found.st_ino, found.st_size, found.st_mode, found.st_uid),
        *(found.st_mtime_ns, found.st_ctime_ns),
    )
