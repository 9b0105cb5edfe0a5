"""Files on the box: `box.files`."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from execserver.client.errors import NotFoundError, UnsupportedByServer
from execserver.client.greenlets.router import Router
from execserver.client.operations import content, files, trees
from execserver.client.operations.content import Handles
from execserver.client.operations.pages import Pages
from execserver.client.rules.wire import RemotePath
from execserver.protocol import files as fs
from execserver.protocol.batches import FsListEntry, FsReadManyFile, FsWriteEntry, FsWriteError
from execserver.protocol.changes import FsGetVersionResponse
from execserver.protocol.paths import PathUri
from execserver.protocol.sandbox import FileSystemSandboxContext
from execserver.protocol.trees import FsHashEntry, FsSearchMatch
from execserver_client._download import download
from execserver_client._driving import adrive
from execserver_client._errands import Errands
from execserver_client._flow import Gate
from execserver_client._opening import Opening
from execserver_client._remote_file import RemoteFile
from execserver_client._session import Session
from execserver_client._transfer import LocalPath, Progress, Transfer
from execserver_client._upload import upload
from execserver_client.sandbox import AnySandbox, context_of
from execserver_client.watches import FileWatch, watch

Entry = TypeVar("Entry")
Errors: TypeAlias = list[fs.FsWalkError]  # inside the class `list` is a method

_NOWHERE = PathUri.from_native(b"/")  # for what has its own folders


class Files:
    """The files of a box; paths are absolute or `file:` URIs, and need not be UTF-8 (bytes, `os.fsencode`).

    With `sandbox` (as for `Box.run`) the box does a request inside it.  A refusal is a `RequestFailed`:
    `NotFoundError` for a missing file, else the class of its code.  What is an extension of this project's
    server is refused by others as `MethodNotFoundError` or `UnsupportedByServer`.  What finds many things is
    an asynchronous iterator, which asks page by page and yields a `FsWalkError` for what could not be read.
    """

    def __init__(
        self,
        session: Session,
        gate: Gate,
        router: Router,
        errands: Errands,
        home: PathUri | None = None,
    ) -> None:
        """`Box.files` is one; `home`, else that of the box's user, is what `workspace-write` lets change."""
        self._session = session
        self._gate = gate
        self._router = router
        self._errands = errands
        self._home = home
        self._handles = Handles()

    def _inside(self, sandbox: AnySandbox) -> FileSystemSandboxContext | None:
        if sandbox is None:
            return None
        info = self._session.environment_info
        home = self._home or (info and (info.user_home_dir or info.cwd))
        if home is None and not isinstance(sandbox, Mapping | FileSystemSandboxContext):
            raise UnsupportedByServer("this server tells no home: give the contract's object as the sandbox")
        return context_of(sandbox, home or _NOWHERE)

    async def read(
        self, path: RemotePath, *, max_bytes: int | None = None, sandbox: AnySandbox = None
    ) -> bytes:
        """Return the content of a regular file; above 8 MiB it is read block by block.

        Raises `FileTooLarge` for more than `max_bytes`, and for a file that proves to be more than 8 MiB
        larger than the box reported before.
        """
        operation = content.read_file(self._handles, path, sandbox=self._inside(sandbox), max_bytes=max_bytes)
        return await adrive(self._session, operation)

    async def read_text(
        self,
        path: RemotePath,
        *,
        encoding: str = "utf-8",
        errors: str = "strict",
        max_bytes: int | None = None,
        sandbox: AnySandbox = None,
    ) -> str:
        """Return the text of a file, line ends as they are.  Raises as `read` does, and UnicodeError."""
        return (await self.read(path, max_bytes=max_bytes, sandbox=sandbox)).decode(encoding, errors)

    async def write(self, path: RemotePath, data: bytes, *, sandbox: AnySandbox = None) -> None:
        """Create a file or write it anew, in its place: whoever reads meanwhile may see a part of it.

        Above 40 MiB it goes block by block, which not every server offers.
        """
        info = self._session.environment_info
        await adrive(
            self._session, content.write_file(self._handles, path, data, info, self._inside(sandbox))
        )

    async def write_text(
        self, path: RemotePath, text: str, *, encoding: str = "utf-8", sandbox: AnySandbox = None
    ) -> None:
        """Write a text as `write` does, line ends as they are."""
        await self.write(path, text.encode(encoding), sandbox=sandbox)

    async def replace(
        self,
        path: RemotePath,
        data: bytes,
        *,
        mode: int | None = None,
        if_unchanged: fs.FileVersion | None = None,
        must_not_exist: bool = False,
        sandbox: AnySandbox = None,
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
            sandbox=self._inside(sandbox),
        )
        await adrive(self._session, operation)

    def open(
        self, path: RemotePath, mode: str = "read", *, sandbox: AnySandbox = None
    ) -> Opening[RemoteFile]:
        """Open a regular file: mode `read`, or `replace` to create or empty it for writing.

        Use it as `async with files.open(path) as file`, or close the file yourself.  Raises
        `UnsupportedByServer` for `replace` on a server that cannot write blocks.
        """
        return Opening(self._open(path, mode, sandbox))

    async def _open(self, path: RemotePath, mode: str, sandbox: AnySandbox) -> RemoteFile:
        info, handle_id = self._session.environment_info, self._handles.new()
        operation = content.opened_or_abandoned(handle_id, path, mode, info, self._inside(sandbox))
        return RemoteFile(self._session, await adrive(self._session, operation))

    async def stat(self, path: RemotePath, *, sandbox: AnySandbox = None) -> fs.FsGetMetadataResponse:
        """Return kind, size and times of what is at a path, links followed; the times are in ms."""
        return await adrive(self._session, files.get_metadata(path, self._inside(sandbox)))

    async def version(self, path: RemotePath, *, sandbox: AnySandbox = None) -> FsGetVersionResponse:
        """Return what `replace` takes as `if_unchanged`, and the permissions of a file (an extension)."""
        return await adrive(self._session, files.stat(path, self._inside(sandbox)))

    async def exists(self, path: RemotePath, *, sandbox: AnySandbox = None) -> bool:
        """Return whether a path leads to something; False also for a link that leads nowhere."""
        try:
            await self.stat(path, sandbox=sandbox)
        except NotFoundError:
            return False
        return True

    async def list(
        self, path: RemotePath, *, sandbox: AnySandbox = None
    ) -> tuple[fs.FsReadDirectoryEntry, ...]:
        """Return the names in a folder, unsorted, hidden ones included."""
        return await adrive(self._session, files.read_directory(path, self._inside(sandbox)))

    def walk(
        self, path: RemotePath, *, sandbox: AnySandbox = None
    ) -> AsyncGenerator[FsListEntry | fs.FsWalkError, None]:
        """Yield a file, or a folder with all that is below it, links not followed (an extension).

        Names are relative, and bytes; that of `path` itself is empty.
        """
        return self._each(trees.list_pages(path, self._inside(sandbox)))

    def glob(
        self, path: RemotePath, pattern: str, *, gitignore: bool = False, sandbox: AnySandbox = None
    ) -> AsyncGenerator[fs.FsWalkEntry | fs.FsWalkError, None]:
        """Yield the files and folders below a folder whose relative names match (an extension).

        With `gitignore` what git would ignore is left out, and `.git`.
        """
        return self._each(trees.glob_pages(path, pattern, gitignore, self._inside(sandbox)))

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
        sandbox: AnySandbox = None,
    ) -> AsyncGenerator[FsSearchMatch | fs.FsWalkError, None]:
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
            sandbox=self._inside(sandbox),
        )
        return self._each(pages)

    def hash(
        self, path: RemotePath, *, offset: int = 0, length: int | None = None, sandbox: AnySandbox = None
    ) -> AsyncGenerator[FsHashEntry | fs.FsWalkError, None]:
        """Yield the SHA-256 of a file, or of a part of it, or of all files below a folder (an extension)."""
        return self._each(trees.hash_pages(path, offset, length, self._inside(sandbox)))

    async def _each(self, pages: Pages[Entry]) -> AsyncGenerator[Entry | fs.FsWalkError, None]:
        while not pages.ended:
            for each in await adrive(self._session, pages.next()):
                yield each

    async def mkdir(self, path: RemotePath, *, parents: bool = True, sandbox: AnySandbox = None) -> None:
        """Make a folder, with its parents unless `parents` is False; one that is there is fine with them."""
        await adrive(self._session, files.create_directory(path, parents, self._inside(sandbox)))

    async def remove(
        self,
        path: RemotePath,
        *,
        recursive: bool = False,
        missing_ok: bool = False,
        sandbox: AnySandbox = None,
    ) -> None:
        """Remove a file, a link itself or, with `recursive`, a folder with all that is in it."""
        await adrive(self._session, files.remove(path, recursive, missing_ok, self._inside(sandbox)))

    async def rename(
        self, source: RemotePath, target: RemotePath, *, replace: bool = True, sandbox: AnySandbox = None
    ) -> None:
        """Give a file or folder another name; what has it is replaced unless `replace` is False."""
        await adrive(self._session, files.rename(source, target, replace, self._inside(sandbox)))

    async def copy(
        self, source: RemotePath, target: RemotePath, *, recursive: bool = False, sandbox: AnySandbox = None
    ) -> None:
        """Copy a file or a link on the box, or with `recursive` a folder."""
        await adrive(self._session, files.copy(source, target, recursive, self._inside(sandbox)))

    async def chmod(self, path: RemotePath, mode: int, *, sandbox: AnySandbox = None) -> None:
        """Set the permissions of what a path leads to (an extension)."""
        await adrive(self._session, files.chmod(path, mode, self._inside(sandbox)))

    async def touch(
        self,
        path: RemotePath,
        *,
        modified_ns: int | None = None,
        accessed_ns: int | None = None,
        create: bool = True,
        sandbox: AnySandbox = None,
    ) -> None:
        """Set times, none for now; make an empty file where there is none (an extension)."""
        operation = files.touch(
            path,
            modified_at_ns=modified_ns,
            accessed_at_ns=accessed_ns,
            create=create,
            sandbox=self._inside(sandbox),
        )
        await adrive(self._session, operation)

    async def canonicalize(self, path: RemotePath, *, sandbox: AnySandbox = None) -> str:
        """Return a path with every symlink resolved, as `os.fsdecode` has it."""
        return os.fsdecode(
            (await adrive(self._session, files.canonicalize(path, self._inside(sandbox)))).native()
        )

    async def read_many(
        self, path: RemotePath, names: Sequence[bytes], *, sandbox: AnySandbox = None
    ) -> tuple[FsReadManyFile, ...]:
        """Read files below a folder, each of 1 MiB at most; the answer may be about the first only."""
        return await adrive(self._session, trees.read_many(path, names, self._inside(sandbox)))

    async def write_many(
        self, path: RemotePath, entries: Sequence[FsWriteEntry], *, sandbox: AnySandbox = None
    ) -> tuple[FsWriteError, ...]:
        """Make, replace and remove what is below a folder, each entry as a whole; return what failed."""
        return await adrive(self._session, trees.write_many(path, entries, self._inside(sandbox)))

    async def write_parts(
        self,
        path: RemotePath,
        entries: Iterable[FsWriteEntry] | AsyncIterable[FsWriteEntry],
        *,
        sandbox: AnySandbox = None,
    ) -> None:
        """Add pieces to a file below a folder, in order, each as an entry with `part` of `write_many`.

        Up to 4 MiB of them are on their way before the first is answered, and their bytes may go without
        base64 (an extension).  Raises `RequestFailed` as soon as one is refused.
        """
        from execserver_client._pipelining import write_parts  # late: few programs send much

        await write_parts(self._session, path, entries, self._inside(sandbox))

    async def archive(
        self, path: RemotePath, errors: Errors, *, sandbox: AnySandbox = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the pieces of a tar archive of a file, or of what is in a folder (an extension).

        What could not be packed is added to `errors`.  The archive is what the box says it is: unpack it
        with care, or use `download`.
        """
        pieces = trees.archive_pieces(path, errors, self._inside(sandbox))
        while not pieces.ended:
            yield await adrive(self._session, pieces.next())

    async def extract(
        self, path: RemotePath, pieces: AsyncIterable[bytes], *, sandbox: AnySandbox = None
    ) -> Errors:
        """Unpack a tar archive into a folder of the box; return what could not be unpacked (an extension).

        Raises ValueError for an archive that ends too early.
        """
        extraction = trees.Extraction(path, self._inside(sandbox))
        async for piece in pieces:
            await adrive(self._session, extraction.feed(piece))
            if extraction.done:
                break
        return await adrive(self._session, extraction.finish())

    def watch(
        self,
        path: RemotePath,
        *,
        recursive: bool = True,
        coalesce: float = 0.1,
        sandbox: AnySandbox = None,
    ) -> Opening[FileWatch]:
        """Watch a folder and all below it; iterate over what this opens for batches of what has changed.

        Changes are collected for `coalesce` seconds, at most 10.  Once it is open everything is watched.
        Raises `RequestFailed`, with the cure where a limit is reached, or `UnsupportedByServer`.
        """
        where = self._session, self._gate, self._router, self._errands, path
        return watch(*where, recursive=recursive, coalesce=coalesce, sandbox=self._inside(sandbox))

    async def upload(
        self,
        local: LocalPath,
        remote: RemotePath,
        *,
        progress: Progress | None = None,
        sandbox: AnySandbox = None,
    ) -> Transfer:
        """Copy a file, or a folder with all that is in it, of this machine to `remote`.

        `remote` is the path of the copy itself.  What is in a folder goes into the folder there, which may be
        there already; nothing is removed.  Content, permissions, times in nanoseconds, symlinks (below the
        top) and names of any bytes are kept.  Each file appears whole or not at all, also if this is
        cancelled, but on a server without the extension `fsMany`, which takes single files only.

        Raises OSError for `local`, and, once everything else is copied, `TransferFailed` with all that could
        not be.
        """
        sides, inside = (self._session, self._handles, local, remote), self._inside(sandbox)
        return await upload(*sides, progress=progress, sandbox=inside)

    async def download(
        self,
        remote: RemotePath,
        local: LocalPath,
        *,
        progress: Progress | None = None,
        max_bytes: int | None = None,
        sandbox: AnySandbox = None,
    ) -> Transfer:
        """Copy a file, or a folder with all that is in it, from the box to `local`, as `upload` does.

        Whatever the box sends is written at `local` or below it only, through no link, and without set-id
        bits.  How much that is, the box decides, unless `max_bytes` bounds it (of a folder: with 512 bytes
        and more for each name).

        Raises OSError for what cannot be written here, `FileTooLarge`, `ProtocolViolation` for what is no
        archive or leads elsewhere, and, once everything else is copied, `TransferFailed`.
        """
        sides, inside = (self._session, self._handles, remote, local), self._inside(sandbox)
        return await download(*sides, progress=progress, max_bytes=max_bytes, sandbox=inside)
