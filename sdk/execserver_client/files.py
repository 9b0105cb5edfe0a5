"""Files on the box: `box.files`."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Sequence
from typing import TypeAlias, TypeVar

from execserver.client.errors import NotFoundError
from execserver.client.operations import content, files, trees
from execserver.client.operations.content import Handles
from execserver.client.operations.pages import Pages
from execserver.client.wire import RemotePath, Sandbox
from execserver.protocol.batches import FsListEntry, FsReadManyFile, FsWriteEntry, FsWriteError
from execserver.protocol.changes import FsGetVersionResponse
from execserver.protocol.files import (
    FileVersion,
    FsGetMetadataResponse,
    FsReadDirectoryEntry,
    FsWalkEntry,
    FsWalkError,
)
from execserver.protocol.trees import FsHashEntry, FsSearchMatch
from execserver_client._download import download
from execserver_client._driving import adrive
from execserver_client._opening import Opening
from execserver_client._remote_file import RemoteFile
from execserver_client._transfer import Host, Progress, Transfer
from execserver_client._upload import upload

Entry = TypeVar("Entry")
Errors: TypeAlias = list[FsWalkError]  # inside the class `list` is a method


class Files:
    """The files of a box; paths are absolute or `file:` URIs, and need not be UTF-8 (bytes, `os.fsencode`).

    With `sandbox` the box does a request inside it.  A refusal is a `RequestFailed`: `NotFoundError` for a
    missing file, else the class of its code.  What is an extension of this project's server is refused by
    others as `MethodNotFoundError` or `UnsupportedByServer`.  What finds many things is an asynchronous
    iterator, which asks page by page and yields a `FsWalkError` for what could not be read; close one that is
    left early (`contextlib.aclosing`).
    """

    def __init__(self, session: Host) -> None:
        """`Box.files` is one."""
        self._session = session
        self._handles = Handles()

    async def read(self, path: RemotePath, *, max_bytes: int | None = None, sandbox: Sandbox = None) -> bytes:
        """Return the content of a regular file; above 8 MiB it is read block by block.

        Raises `FileTooLarge` for more than `max_bytes`, and for a file that proves to be more than 8 MiB
        larger than the box reported before.
        """
        operation = content.read_file(self._handles, path, sandbox=sandbox, max_bytes=max_bytes)
        return await adrive(self._session, operation)

    async def read_text(
        self,
        path: RemotePath,
        *,
        encoding: str = "utf-8",
        errors: str = "strict",
        max_bytes: int | None = None,
        sandbox: Sandbox = None,
    ) -> str:
        """Return the text of a file, line ends as they are.  Raises as `read` does, and UnicodeError."""
        return (await self.read(path, max_bytes=max_bytes, sandbox=sandbox)).decode(encoding, errors)

    async def write(self, path: RemotePath, data: bytes, *, sandbox: Sandbox = None) -> None:
        """Create a file or write it anew, in its place: whoever reads meanwhile may see a part of it.

        Above 40 MiB it goes block by block, which not every server offers.
        """
        info = self._session.environment_info
        await adrive(self._session, content.write_file(self._handles, path, data, info, sandbox))

    async def write_text(
        self, path: RemotePath, text: str, *, encoding: str = "utf-8", sandbox: Sandbox = None
    ) -> None:
        """Write a text as `write` does, line ends as they are."""
        await self.write(path, text.encode(encoding), sandbox=sandbox)

    async def replace(
        self,
        path: RemotePath,
        data: bytes,
        *,
        mode: int | None = None,
        if_unchanged: FileVersion | None = None,
        must_not_exist: bool = False,
        sandbox: Sandbox = None,
    ) -> None:
        """Replace a file as a whole or not at all; only if it still is the `version` that is given.

        Raises `InvalidRequestError` if it is not, or is there in spite of `must_not_exist` (an extension).
        """
        operation = files.replace_file(
            path,
            data,
            mode=mode,
            if_unchanged_since=if_unchanged,
            must_not_exist=must_not_exist,
            sandbox=sandbox,
        )
        await adrive(self._session, operation)

    def open(self, path: RemotePath, mode: str = "read", *, sandbox: Sandbox = None) -> Opening[RemoteFile]:
        """Open a regular file: mode `read`, or `replace` to create or empty it for writing.

        Use it as `async with files.open(path) as file`, or await it and `aclose` the file.  Raises
        `UnsupportedByServer` for `replace` on a server that cannot write blocks.
        """
        return Opening(self._open(path, mode, sandbox))

    async def _open(self, path: RemotePath, mode: str, sandbox: Sandbox) -> RemoteFile:
        info, handle_id = self._session.environment_info, self._handles.new()
        operation = content.opened_or_abandoned(handle_id, path, mode, info, sandbox)
        return RemoteFile(self._session, await adrive(self._session, operation))

    async def stat(self, path: RemotePath, *, sandbox: Sandbox = None) -> FsGetMetadataResponse:
        """Return kind, size and times of what is at a path, links followed; the times are in ms."""
        return await adrive(self._session, files.get_metadata(path, sandbox))

    async def version(self, path: RemotePath, *, sandbox: Sandbox = None) -> FsGetVersionResponse:
        """Return what `replace` takes as `if_unchanged`, and the permissions of a file (an extension)."""
        return await adrive(self._session, files.stat(path, sandbox))

    async def exists(self, path: RemotePath, *, sandbox: Sandbox = None) -> bool:
        """Return whether a path leads to something; False also for a link that leads nowhere."""
        try:
            await self.stat(path, sandbox=sandbox)
        except NotFoundError:
            return False
        return True

    async def list(self, path: RemotePath, *, sandbox: Sandbox = None) -> tuple[FsReadDirectoryEntry, ...]:
        """Return the names in a folder, unsorted, hidden ones included."""
        return await adrive(self._session, files.read_directory(path, sandbox))

    def walk(
        self, path: RemotePath, *, sandbox: Sandbox = None
    ) -> AsyncGenerator[FsListEntry | FsWalkError, None]:
        """Yield a file, or a folder with all that is below it, links not followed (an extension).

        Names are relative, and bytes; that of `path` itself is empty.
        """
        return self._each(trees.list_pages(path, sandbox))

    def glob(
        self, path: RemotePath, pattern: str, *, gitignore: bool = False, sandbox: Sandbox = None
    ) -> AsyncGenerator[FsWalkEntry | FsWalkError, None]:
        """Yield the files and folders below a folder whose relative names match (an extension).

        With `gitignore` what git would ignore is left out, and `.git`.
        """
        return self._each(trees.glob_pages(path, pattern, gitignore, sandbox))

    def search(
        self,
        path: RemotePath,
        pattern: str,
        *,
        literal: bool = False,
        ignore_case: bool = False,
        include: str | None = None,
        hidden: bool = False,
        gitignore: bool = False,
        sandbox: Sandbox = None,
    ) -> AsyncGenerator[FsSearchMatch | FsWalkError, None]:
        """Yield the lines of a file, or of the files below a folder, that match a regular expression.

        An extension.  With `gitignore` files that git would ignore are left out.
        """
        pages = trees.search_pages(
            path,
            pattern,
            literal=literal,
            ignore_case=ignore_case,
            include=include,
            hidden=hidden,
            gitignore=gitignore,
            sandbox=sandbox,
        )
        return self._each(pages)

    def hash(
        self, path: RemotePath, *, offset: int = 0, length: int | None = None, sandbox: Sandbox = None
    ) -> AsyncGenerator[FsHashEntry | FsWalkError, None]:
        """Yield the SHA-256 of a file, or of a part of it, or of all files below a folder (an extension)."""
        return self._each(trees.hash_pages(path, offset, length, sandbox))

    async def _each(self, pages: Pages[Entry]) -> AsyncGenerator[Entry | FsWalkError, None]:
        while not pages.ended:
            for each in await adrive(self._session, pages.next()):
                yield each

    async def mkdir(self, path: RemotePath, *, parents: bool = True, sandbox: Sandbox = None) -> None:
        """Make a folder, with its parents unless `parents` is False; one that is there is fine with them."""
        await adrive(self._session, files.create_directory(path, parents, sandbox))

    async def remove(
        self,
        path: RemotePath,
        *,
        recursive: bool = False,
        missing_ok: bool = False,
        sandbox: Sandbox = None,
    ) -> None:
        """Remove a file, a link itself or, with `recursive`, a folder with all that is in it."""
        await adrive(self._session, files.remove(path, recursive, missing_ok, sandbox))

    async def rename(
        self, source: RemotePath, target: RemotePath, *, replace: bool = True, sandbox: Sandbox = None
    ) -> None:
        """Give a file or folder another name; what has it is replaced unless `replace` is False."""
        await adrive(self._session, files.rename(source, target, replace, sandbox))

    async def copy(
        self, source: RemotePath, target: RemotePath, *, recursive: bool = False, sandbox: Sandbox = None
    ) -> None:
        """Copy a file or a link on the box, or with `recursive` a folder."""
        await adrive(self._session, files.copy(source, target, recursive, sandbox))

    async def chmod(self, path: RemotePath, mode: int, *, sandbox: Sandbox = None) -> None:
        """Set the permissions of what a path leads to (an extension)."""
        await adrive(self._session, files.chmod(path, mode, sandbox))

    async def touch(
        self,
        path: RemotePath,
        *,
        modified_ns: int | None = None,
        accessed_ns: int | None = None,
        create: bool = True,
        sandbox: Sandbox = None,
    ) -> None:
        """Set times, none for now; make an empty file where there is none (an extension)."""
        operation = files.touch(
            path, modified_at_ns=modified_ns, accessed_at_ns=accessed_ns, create=create, sandbox=sandbox
        )
        await adrive(self._session, operation)

    async def canonicalize(self, path: RemotePath, *, sandbox: Sandbox = None) -> str:
        """Return a path with every symlink resolved, as `os.fsdecode` has it."""
        return os.fsdecode((await adrive(self._session, files.canonicalize(path, sandbox))).native())

    async def read_many(
        self, path: RemotePath, names: Sequence[bytes], *, sandbox: Sandbox = None
    ) -> tuple[FsReadManyFile, ...]:
        """Read files below a folder, each of 1 MiB at most; the answer may be about the first only."""
        return await adrive(self._session, trees.read_many(path, names, sandbox))

    async def write_many(
        self, path: RemotePath, entries: Sequence[FsWriteEntry], *, sandbox: Sandbox = None
    ) -> tuple[FsWriteError, ...]:
        """Make, replace and remove what is below a folder, each entry as a whole; return what failed."""
        return await adrive(self._session, trees.write_many(path, entries, sandbox))

    async def archive(
        self, path: RemotePath, errors: Errors, *, sandbox: Sandbox = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the pieces of a tar archive of a file, or of what is in a folder (an extension).

        What could not be packed is added to `errors`.  The archive is what the box says it is: unpack it
        with care, or use `download`.
        """
        pieces = trees.archive_pieces(path, errors, sandbox)
        while not pieces.ended:
            yield await adrive(self._session, pieces.next())

    async def extract(
        self, path: RemotePath, pieces: Iterable[bytes] | AsyncIterable[bytes], *, sandbox: Sandbox = None
    ) -> Errors:
        """Unpack a tar archive into a folder of the box; return what could not be unpacked (an extension).

        Raises ValueError for an archive that ends too early.
        """
        extraction = trees.Extraction(path, sandbox)
        async for piece in _all(pieces):
            await adrive(self._session, extraction.feed(piece))
            if extraction.done:
                break
        return await adrive(self._session, extraction.finish())

    async def upload(
        self,
        local: str | bytes | os.PathLike[str],
        remote: RemotePath,
        *,
        progress: Progress | None = None,
        sandbox: Sandbox = None,
    ) -> Transfer:
        """Copy a file, or a folder with all that is in it, of this machine to `remote`.

        `remote` is the path of the copy itself.  What is in a folder goes into the folder there, which may be
        there already; nothing is removed.  Content, permissions, times in nanoseconds, symlinks (below the
        top) and names of any bytes are kept.  Each file appears whole or not at all, also if this is
        cancelled, but on a server without the extension `fsMany`, which takes single files only.

        Raises OSError for `local`, and, once everything else is copied, `TransferFailed` with all that could
        not be.
        """
        return await upload(self._session, self._handles, local, remote, progress=progress, sandbox=sandbox)

    async def download(
        self,
        remote: RemotePath,
        local: str | bytes | os.PathLike[str],
        *,
        progress: Progress | None = None,
        max_bytes: int | None = None,
        sandbox: Sandbox = None,
    ) -> Transfer:
        """Copy a file, or a folder with all that is in it, from the box to `local`, as `upload` does.

        Whatever the box sends is written at `local` or below it only, through no link, and without set-id
        bits.  How much that is, the box decides, unless `max_bytes` bounds it (of a folder: with 512 bytes
        and more for each name).

        Raises OSError for what cannot be written here, `FileTooLarge`, `ProtocolViolation` for what is no
        archive or leads elsewhere, and, once everything else is copied, `TransferFailed`.
        """
        return await download(
            self._session,
            self._handles,
            remote,
            local,
            progress=progress,
            max_bytes=max_bytes,
            sandbox=sandbox,
        )


async def _all(pieces: Iterable[bytes] | AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    if isinstance(pieces, AsyncIterable):
        async for piece in pieces:
            yield piece
    else:
        for piece in pieces:
            yield piece
