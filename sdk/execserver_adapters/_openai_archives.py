"""Workspaces as tar streams: from the box without what must not be kept, and to it after a check.

A stream is held in a file of this machine, of which the first 8 MiB are in memory.
"""

from __future__ import annotations

import asyncio
import io
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, Final, TypeAlias

from agents.sandbox.errors import (
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
)
from agents.sandbox.util.tar_utils import UnsafeTarMemberError, should_skip_tar_member, validate_tarfile

from execserver_client import Box

Spool: TypeAlias = tempfile.SpooledTemporaryFile[bytes]

_IN_MEMORY: Final = 8 * 1024 * 1024
_PIECE: Final = 1024 * 1024
_TOLD: Final = 5  # errors that are in the context of one


async def fetch(box: Box, root: str, skip: Iterable[Path], *, sandbox: Any, limit: int) -> Spool:
    """Return a tar stream of what is below `root`, with names relative to it, from its beginning.

    Raises `WorkspaceArchiveReadError` if it has more than `limit` bytes, or if something cannot be read.
    """
    errors: list[Any] = []
    spool: Spool = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - returned open
    try:
        async for piece in box.files.archive(root, errors, sandbox=sandbox):
            if spool.tell() + len(piece) > limit:
                raise WorkspaceArchiveReadError(
                    path=Path(root),
                    context={"reason": "workspace_too_large", "limit": limit},
                    retryable=False,
                )
            await asyncio.to_thread(spool.write, piece)
        if errors:
            told = [str(each.message) for each in errors[:_TOLD]]
            raise WorkspaceArchiveReadError(
                path=Path(root), context={"reason": "unreadable", "errors": told, "count": len(errors)}
            )
        spool.seek(0)
        left_out = tuple(skip)
        return await asyncio.to_thread(_without, spool, left_out) if left_out else spool
    except BaseException:
        spool.close()
        raise


async def checked(data: io.IOBase, root: str, *, limit: int) -> Spool:
    """Return an archive, copied and found harmless, from its beginning.

    Raises `WorkspaceArchiveWriteError` for names and links that lead away, and for more than `limit` bytes.
    """
    spool: Spool = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - returned open
    try:
        await asyncio.to_thread(_copy, data, spool, root, limit)
        await asyncio.to_thread(_check, spool, root)
    except BaseException:
        spool.close()
        raise
    spool.seek(0)
    return spool


async def unpack(box: Box, root: str, spool: Spool, *, sandbox: Any) -> None:
    """Unpack a checked archive below `root`.  Raises `WorkspaceArchiveWriteError` if anything fails."""

    async def pieces() -> AsyncIterator[bytes]:
        while piece := await asyncio.to_thread(spool.read, _PIECE):
            yield piece

    errors = await box.files.extract(root, pieces(), sandbox=sandbox)
    if errors:
        told = [str(each.message) for each in errors[:_TOLD]]
        raise WorkspaceArchiveWriteError(
            path=Path(root), context={"reason": "not_unpacked", "errors": told, "count": len(errors)}
        )


def _without(spool: Spool, skip: tuple[Path, ...]) -> Spool:
    """Copy an archive without some paths; closes the first one."""
    kept: Spool = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - returned open
    try:
        with (
            spool,
            tarfile.open(fileobj=spool, mode="r:") as source,
            tarfile.open(fileobj=kept, mode="w", format=tarfile.PAX_FORMAT) as target,
        ):
            for member in source:
                if not should_skip_tar_member(member.name, skip_rel_paths=skip, root_name=None):
                    target.addfile(member, source.extractfile(member) if member.isreg() else None)
    except BaseException:
        kept.close()
        raise
    kept.seek(0)
    return kept


def _copy(data: io.IOBase, spool: Spool, root: str, limit: int) -> None:
    while piece := data.read(_PIECE):
        if not isinstance(piece, bytes):
            raise WorkspaceArchiveWriteError(
                path=Path(root), context={"reason": "not_binary"}, retryable=False
            )
        if spool.tell() + len(piece) > limit:
            raise WorkspaceArchiveWriteError(
                path=Path(root), context={"reason": "archive_too_large", "limit": limit}, retryable=False
            )
        spool.write(piece)


def _check(spool: Spool, root: str) -> None:
    spool.seek(0)
    try:
        with tarfile.open(fileobj=spool, mode="r:") as archive:
            validate_tarfile(archive, allow_external_symlink_targets=False)
    except UnsafeTarMemberError as error:
        context: dict[str, object] = {"reason": error.reason, "member": error.member}
        raise WorkspaceArchiveWriteError(path=Path(root), context=context, cause=error) from error
    except (tarfile.TarError, OSError) as error:
        raise WorkspaceArchiveWriteError(
            path=Path(root), context={"reason": "malformed_archive"}, cause=error
        ) from error
