"""Probes the folders that the program needs: for its own files, and for mask records."""

from __future__ import annotations

import os

from execserver.sandbox.backends.report import PROGRAM_FILES, STATE_FOLDER, Check
from execserver.sandbox.masks.records import state_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def program_files(folder: bytes, preferred: Sequence[bytes]) -> Check:
    """Tell where the program runs from, and which of its preferred folders cannot hold programs.

    `folder` has the running program; `preferred` are the folders that it would rather be unpacked in.
    """
    passed_over = []
    for place in preferred:
        if folder.startswith(place.rstrip(b"/") + b"/"):
            break
        if _executes_nothing(place):
            passed_over.append(os.fsdecode(place))
    detail = os.fsdecode(folder)
    if passed_over:
        detail += f", since {' and '.join(passed_over)} may hold no programs (mounted noexec)"
    return Check(PROGRAM_FILES, True, detail)


def unpacking_places(environ: Mapping[bytes, bytes]) -> list[bytes]:
    """Return the folders that the single-file program unpacks into, best first (docs/operations.md)."""
    forced = environ.get(b"EXECSERVER_CACHE_DIR")
    if forced:
        return [forced]
    home, cache = environ.get(b"HOME"), environ.get(b"XDG_CACHE_HOME")
    caches = [cache + b"/execserver"] if cache else []
    return caches + ([home + b"/.cache/execserver"] if home and os.path.isdir(home) else [])


def state(environ: Mapping[bytes, bytes]) -> Check:
    """Tell whether mask targets of missing protected paths can be recorded, and where."""
    folder = state_folder(environ.get(b"XDG_RUNTIME_DIR"))
    if folder is not None:
        return Check(STATE_FOLDER, True, os.fsdecode(folder))
    return Check(
        STATE_FOLDER,
        False,
        "",
        "there is no private folder for records; commands whose policy protects a missing path are refused",
        "set XDG_RUNTIME_DIR to a folder of this user, or let it write to /tmp",
    )


def _executes_nothing(folder: bytes) -> bool:
    while folder not in (b"/", b""):
        try:
            return bool(os.statvfs(folder).f_flag & os.ST_NOEXEC)
        except OSError:
            folder = os.path.dirname(folder)  # not made yet: the file system is that of its parent
    return False
