"""From a server's answer to Python's own error: `Permission denied (os error 13)` is a `PermissionError`."""

from __future__ import annotations

import errno
import os
import re
from typing import Final

from execserver_client import NotFoundError, RequestFailed

_NUMBER: Final = re.compile(r"\(os error (\d{1,4})\)")
_MOST_MESSAGE: Final = 300


def number_of(error: RequestFailed) -> int | None:
    """Return the errno that a server's answer names, or None."""
    found = _NUMBER.search(error.message)
    if found:
        return int(found[1])
    return errno.ENOENT if isinstance(error, NotFoundError) else None


def as_os_error(error: RequestFailed, path: str) -> OSError:
    """Return the error of Python that the answer to a file request stands for; its text has the path.

    `OSError` itself chooses the class by the number: `FileNotFoundError`, `IsADirectoryError`, ....
    """
    number = number_of(error)
    if number is None:
        return OSError(f"{error.message[:_MOST_MESSAGE]}: {path!r}")
    return OSError(number, os.strerror(number), path)
