"""How our programs end before, or instead of, doing their work: one exception, printed in one place.

`Error: ...` and status 1 if the work cannot be done, the text of a mistake and status 2 for wrong usage, a
help text or the version and status 0.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

CANNOT, WRONG_USAGE = 1, 2


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


def until_left(work: Callable[[], int]) -> int:
    """Do the work of a program and return its exit status; print the texts of a Leave."""
    try:
        return work()
    except Leave as leave:
        write(1, leave.stdout)
        write(2, leave.stderr)
        return leave.status


def write(descriptor: int, text: str) -> None:
    """Write all of a text to a descriptor, unbuffered; ignore a reader that is gone."""
    data = text.encode("utf-8", "surrogateescape")
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        pass
