"""Which paths of a session lead to its workspace, or to a folder that was granted besides it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agents.sandbox.errors import InvalidManifestPathError, WorkspaceArchiveWriteError
from agents.sandbox.workspace_paths import WorkspacePathPolicy, coerce_posix_path, posix_path_as_path

from execserver_adapters._real_paths import below, real_path
from execserver_client import Box


async def check_access(
    box: Box, policy: WorkspacePathPolicy, path: Path | str, *, for_write: bool, sandbox: Any
) -> Path:
    """Return the normal path in the workspace, links not followed.

    Raises `InvalidManifestPathError` for a path that leads elsewhere, `WorkspaceArchiveWriteError` for a
    write below a grant to read.
    """
    wanted = policy.normalize_sandbox_path(path, for_write=for_write)
    try:
        real = await real_path(box, wanted.as_posix(), sandbox)
    except ValueError as error:
        raise _leads_away(path, str(error)) from error
    if below(real, await real_path(box, policy.sandbox_root().as_posix(), sandbox)):
        return posix_path_as_path(wanted)
    grants = [
        (await real_path(box, root.as_posix(), sandbox), read_only)
        for root, read_only in policy.extra_path_grant_rules()
    ]
    covering = [(root, read_only) for root, read_only in grants if root != "/" and below(real, root)]
    if not covering:
        raise _leads_away(path, real)
    grant, read_only = max(covering, key=lambda each: len(each[0]))
    if for_write and read_only:
        raise WorkspaceArchiveWriteError(
            path=posix_path_as_path(wanted),
            context={"reason": "read_only_extra_path_grant", "grant_path": grant, "resolved_path": real},
        )
    return posix_path_as_path(wanted)


def _leads_away(path: Path | str, real: str) -> InvalidManifestPathError:
    original = coerce_posix_path(path)
    return InvalidManifestPathError(
        rel=original.as_posix(),
        reason="absolute" if original.is_absolute() else "escape_root",
        context={"resolved_path": real},
    )
