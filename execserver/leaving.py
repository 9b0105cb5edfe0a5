"""How our programs end before, or instead of, doing their work: one exception, printed in one place.

`Error: ...` and status 1 if the work cannot be done, the text of a mistake and status 2 for wrong usage, a
help text or the version and status 0.
"""

from __future__ import annotations

import errno
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

CANNOT, WRONG_USAGE, BROKEN_PIPE = 1, 2, 141


class Leave(Exception):
    """The program is to end: with this exit status, and these texts on stdout and stderr."""

    def __init__(self, status: int, *, stdout: str = "", stderr: str = "") -> None:
        super().__init__(stderr or stdout)
        self.status = status
        self.stdout = stdout
        self.stderr = stderr


def failure(text: str, cure: str = "") -> Leave:
    """Return the Leave for work that cannot be done; `cure` says what the user can do about it."""
    advice = f"\n  What to do: {cure}" if cure else ""
    return Leave(CANNOT, stderr=f"Error: {text}{advice}\n")


def reason(error: OSError) -> str:
    """Return the system's words for an error, without what gevent adds to them."""
    return os.strerror(error.errno) if error.errno is not None and error.errno > 0 else str(error.strerror)


def unwritable(error: OSError, status: int = CANNOT) -> Leave:
    """Return the Leave for stdout that takes nothing more: no reader, or with `status` a full disk."""
    if isinstance(error, BrokenPipeError):
        return Leave(BROKEN_PIPE)  # as a program of the system would end, by SIGPIPE
    return Leave(status, stderr=f"Error: the output cannot be written: {reason(error)}\n")


def until_left(work: Callable[[], int]) -> int:
    """Do the work of a program and return its exit status; print the texts of a Leave.

    What could not be printed on stdout is a failure as any other.
    """
    try:
        status = work()
        _flush()
        return status
    except Leave as leave:
        return _left(leave)


def put(text: str) -> None:
    """Write all of a text to stdout, unbuffered.  Raises Leave if that takes nothing more.

    Where stdout was closed when this process began, nobody wants the text.
    """
    try:
        _write(1, text)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise unwritable(error) from None


def write(descriptor: int, text: str) -> None:
    """Write all of a text to a descriptor, unbuffered, as far as it takes it."""
    try:
        _write(descriptor, text)
    except OSError:
        pass


def _left(leave: Leave) -> int:
    try:
        put(leave.stdout)
    except Leave as unprinted:
        leave = unprinted
    write(2, leave.stderr)
    return leave.status


def _flush() -> None:
    try:
        if sys.stdout is not None:  # it was closed when this process began
            sys.stdout.flush()
    except OSError as error:
        # Else the interpreter would try, and complain, once more at its end.
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(nowhere, 1)
        os.close(nowhere)
        raise unwritable(error) from None


def _write(descriptor: int, text: str) -> None:
    data = text.encode("utf-8", "surrogateescape")
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:  # who shares the pipe has made it so
            import select

            select.select([], [descriptor], [])
