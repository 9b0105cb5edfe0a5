"""Files of a workspace, with the framework's errors in the place of the box's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from agents.sandbox.errors import (
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
)
from agents.sandbox.workspace_paths import sandbox_path_str

from execserver_adapters._openai_setup import retryable
from execserver_client import Box, ExecServerError, FileTooLarge, NotFoundError, RequestFailed

_BLOCK: Final = 1024 * 1024


async def content(box: Box, place: Path, *, sandbox: Any, limit: int) -> bytes:
    """Return the content of a file of at most `limit` bytes."""
    try:
        return await box.files.read(sandbox_path_str(place), sandbox=sandbox, max_bytes=limit)
    except NotFoundError as error:
        raise WorkspaceReadNotFoundError(path=place, cause=error) from error
    except FileTooLarge as error:
        context: dict[str, object] = {"reason": "file_too_large", "limit": limit}
        raise WorkspaceArchiveReadError(path=place, context=context, cause=error, retryable=False) from error
    except ExecServerError as error:
        raise WorkspaceArchiveReadError(path=place, cause=error, retryable=retryable(error)) from error


async def beginning(box: Box, place: Path, *, sandbox: Any, size: int) -> bytes:
    """Return at most the first `size` bytes of a file."""
    try:
        async with box.files.open(sandbox_path_str(place), sandbox=sandbox) as file:
            found = bytearray()
            while len(found) < size:
                block = await file.read(min(size - len(found), _BLOCK))
                if not block:
                    break
                found += block
            return bytes(found)
    except NotFoundError as error:
        raise WorkspaceReadNotFoundError(path=place, cause=error) from error
    except ExecServerError as error:
        raise WorkspaceArchiveReadError(path=place, cause=error, retryable=retryable(error)) from error


async def put(box: Box, place: Path, data: bytes, *, sandbox: Any, new: bool) -> None:
    """Write a file and the folders it lies in.  Raises FileExistsError for a `new` one that is there."""
    target = sandbox_path_str(place)
    try:
        await box.files.mkdir(sandbox_path_str(place.parent), parents=True, sandbox=sandbox)
        if new:
            await box.files.replace(target, data, must_not_exist=True, sandbox=sandbox)
        else:
            await box.files.write(target, data, sandbox=sandbox)
    except RequestFailed as error:
        if new and error.message.startswith("file exists"):
            raise FileExistsError(target) from error
        raise WorkspaceArchiveWriteError(path=place, cause=error, retryable=False) from error
    except ExecServerError as error:
        raise WorkspaceArchiveWriteError(path=place, cause=error, retryable=retryable(error)) from error


async def make_folder(box: Box, place: Path, *, sandbox: Any, parents: bool) -> None:
    """Make a folder."""
    try:
        await box.files.mkdir(sandbox_path_str(place), parents=parents, sandbox=sandbox)
    except ExecServerError as error:
        raise WorkspaceArchiveWriteError(path=place, cause=error, retryable=retryable(error)) from error
