"""Replaces a file that only its user may read, as one step: readers see the old content or the new.

Whoever replaces holds a lock that others who do so respect; standard library only.
"""

from __future__ import annotations

import json
import os


def replace_with_json(path: str, content: object) -> None:
    """Replace the file by `content` as JSON; see `replace`."""
    replace(path, f"{json.dumps(content, indent=1)}\n")


def replace(path: str, text: str) -> None:
    """Write `text` to a new file of mode 0600 and put it in the place of the one at `path`.

    Raises OSError; then the old file is as it was.  Syncing the folder, so that the rename survives a power
    cut, is the caller's.
    """
    fresh = f"{path}.new"  # of this process alone: it has the lock
    try:
        os.unlink(fresh)  # left by a process that was killed
    except FileNotFoundError:
        pass
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)  # before the rename, or a power cut could leave an empty file
        os.rename(fresh, path)
    except BaseException:
        os.unlink(fresh)
        raise
