"""Where a path really leads on a box, link by link.

The check answers mistakes and links that lead away.  What a command of the agent changes between the check
and the use is up to the sandbox, which confines the use as well.
"""

from __future__ import annotations

import posixpath
from contextlib import aclosing
from typing import Any

from execserver_client import Box, NotFoundError


def below(path: str, root: str) -> bool:
    """Tell whether a normal absolute path is `root` or below it."""
    return path == root or path.startswith(root.rstrip("/") + "/")


async def real_path(box: Box, path: str, sandbox: Any) -> str:
    """Return a path with all links followed; what does not exist yet is kept as it is.

    Raises ValueError for a link that leads nowhere: writing to it would make a file in its place.
    """
    missing: list[str] = []
    current = posixpath.normpath(path)
    while True:
        try:
            found = str(await box.files.canonicalize(current, sandbox=sandbox))
        except NotFoundError:
            if current == "/" or await _is_link(box, current):
                raise ValueError(f"a link that leads nowhere: {current}") from None
            current, name = posixpath.split(current)
            missing.append(name)
            continue
        return posixpath.join(found, *reversed(missing))


async def _is_link(box: Box, path: str) -> bool:
    try:
        async with aclosing(box.files.walk(path)) as entries:
            first = await anext(entries, None)
    except NotFoundError:
        return False
    return first is not None and hasattr(first, "kind") and first.kind.value == "symlink"
