"""The blocking twin of `execserver_client.files`; `build.py docs` writes it from there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from execserver.client.rules.wire import RemotePath
from execserver.protocol import files as fs
from execserver.protocol.batches import FsListEntry, FsReadManyFile, FsWriteEntry, FsWriteError
from execserver.protocol.changes import FsGetVersionResponse
from execserver.protocol.trees import FsHashEntry, FsSearchMatch
from execserver_client import files as asynchronous
from execserver_client._transfer import LocalPath, Progress, Transfer
from execserver_client.files import Errors
from execserver_client.sandbox import AnySandbox
from execserver_client.sync import _shapes as shapes
from execserver_client.sync._portal import Portal
from execserver_client.sync._remote_file import RemoteFile
from execserver_client.sync._shapes import Items
from execserver_client.sync.watches import FileWatch


class Files:
    """The files of a box; paths are absolute or `file:` URIs, and need not be UTF-8 (bytes, `os.fsencode`).

    With `sandbox` (as for `Box.run`) the box does a request inside it.  A refusal is a `RequestFailed`:
    `NotFoundError` for a missing file, else the class of its code.  What is an extension of this project's
    server is refused by others as `MethodNotFoundError` or `UnsupportedByServer`.  What finds many things is
    an iterator, which asks page by page and yields a `FsWalkError` for what could not be read.
    """

    def __init__(self, portal: Portal, wrapped: asynchronous.Files) -> None:
        self._portal = portal
        self._wrapped = wrapped

    def read(self, path: RemotePath, *, max_bytes: int | None = None, sandbox: AnySandbox = None) -> bytes:
        """Return the content of a regular file; above 8 MiB it is read block by block.

        Raises `FileTooLarge` for more than `max_bytes`, and for a file that proves to be more than 8 MiB
        larger than the box reported before.
        """
        return self._portal.call(self._wrapped.read, path, max_bytes=max_bytes, sandbox=sandbox)

    def read_text(
        self,
        path: RemotePath,
        *,
        encoding: str = "utf-8",
        errors: str = "strict",
        max_bytes: int | None = None,
        sandbox: AnySandbox = None,
    ) -> str:
        """Return the text of a file, line ends as they are.  Raises as `read` does, and UnicodeError."""
        return self._portal.call(
            self._wrapped.read_text,
            path,
            encoding=encoding,
            errors=errors,
            max_bytes=max_bytes,
            sandbox=sandbox,
        )

    def write(self, path: RemotePath, data: bytes, *, sandbox: AnySandbox = None) -> None:
        """Create a file or write it anew, in its place: whoever reads meanwhile may see a part of it.

        Above 40 MiB it goes block by block, which not every server offers.
        """
        self._portal.call(self._wrapped.write, path, data, sandbox=sandbox)

    def write_text(
        self, path: RemotePath, text: str, *, encoding: str = "utf-8", sandbox: AnySandbox = None
    ) -> None:
        """Write a text as `write` does, line ends as they are."""
        self._portal.call(self._wrapped.write_text, path, text, encoding=encoding, sandbox=sandbox)

    def replace(
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
        self._portal.call(
            self._wrapped.replace,
            path,
            data,
            mode=mode,
            if_unchanged=if_unchanged,
            must_not_exist=must_not_exist,
            sandbox=sandbox,
        )

    def open(self, path: RemotePath, mode: str = "read", *, sandbox: AnySandbox = None) -> RemoteFile:
        """Open a regular file: mode `read`, or `replace` to create or empty it for writing.

        Use it as `with files.open(path) as file`, or close the file yourself.  Raises
        `UnsupportedByServer` for `replace` on a server that cannot write blocks.
        """
        found = self._portal.call(
            shapes.settle,
            lambda: self._wrapped.open(path, mode, sandbox=sandbox),
        )
        return RemoteFile(self._portal, found)

    def stat(self, path: RemotePath, *, sandbox: AnySandbox = None) -> fs.FsGetMetadataResponse:
        """Return kind, size and times of what is at a path, links followed; the times are in ms."""
        return self._portal.call(self._wrapped.stat, path, sandbox=sandbox)

    def version(self, path: RemotePath, *, sandbox: AnySandbox = None) -> FsGetVersionResponse:
        """Return what `replace` takes as `if_unchanged`, and the permissions of a file (an extension)."""
        return self._portal.call(self._wrapped.version, path, sandbox=sandbox)

    def exists(self, path: RemotePath, *, sandbox: AnySandbox = None) -> bool:
        """Return whether a path leads to something; False also for a link that leads nowhere."""
        return self._portal.call(self._wrapped.exists, path, sandbox=sandbox)

    def list(self, path: RemotePath, *, sandbox: AnySandbox = None) -> tuple[fs.FsReadDirectoryEntry, ...]:
        """Return the names in a folder, unsorted, hidden ones included."""
        return self._portal.call(self._wrapped.list, path, sandbox=sandbox)

    def walk(self, path: RemotePath, *, sandbox: AnySandbox = None) -> Items[FsListEntry | fs.FsWalkError]:
        """Yield a file, or a folder with all that is below it, links not followed (an extension).

        Names are relative, and bytes; that of `path` itself is empty.
        """
        found = self._portal.run(self._wrapped.walk, path, sandbox=sandbox)
        return Items(self._portal, found, shapes.same)

    def glob(
        self, path: RemotePath, pattern: str, *, gitignore: bool = False, sandbox: AnySandbox = None
    ) -> Items[fs.FsWalkEntry | fs.FsWalkError]:
        """Yield the files and folders below a folder whose relative names match (an extension).

        With `gitignore` what git would ignore is left out, and `.git`.
        """
        found = self._portal.run(self._wrapped.glob, path, pattern, gitignore=gitignore, sandbox=sandbox)
        return Items(self._portal, found, shapes.same)

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
    ) -> Items[FsSearchMatch | fs.FsWalkError]:
        """Yield the lines of a file, or of the files below a folder, that match a regular expression.

        An extension.  With `gitignore` files that git would ignore are left out.
        """
        found = self._portal.run(
            self._wrapped.search,
            path,
            pattern,
            literal=literal,
            ignore_case=ignore_case,
            include=include,
            hidden=hidden,
            gitignore=gitignore,
            sandbox=sandbox,
        )
        return Items(self._portal, found, shapes.same)

    def hash(
        self, path: RemotePath, *, offset: int = 0, length: int | None = None, sandbox: AnySandbox = None
    ) -> Items[FsHashEntry | fs.FsWalkError]:
        """Yield the SHA-256 of a file, or of a part of it, or of all files below a folder (an extension)."""
        found = self._portal.run(self._wrapped.hash, path, offset=offset, length=length, sandbox=sandbox)
        return Items(self._portal, found, shapes.same)

    def mkdir(self, path: RemotePath, *, parents: bool = True, sandbox: AnySandbox = None) -> None:
        """Make a folder, with its parents unless `parents` is False; one that is there is fine with them."""
        self._portal.call(self._wrapped.mkdir, path, parents=parents, sandbox=sandbox)

    def remove(
        self,
        path: RemotePath,
        *,
        recursive: bool = False,
        missing_ok: bool = False,
        sandbox: AnySandbox = None,
    ) -> None:
        """Remove a file, a link itself or, with `recursive`, a folder with all that is in it."""
        self._portal.call(
            self._wrapped.remove,
            path,
            recursive=recursive,
            missing_ok=missing_ok,
            sandbox=sandbox,
        )

    def rename(
        self, source: RemotePath, target: RemotePath, *, replace: bool = True, sandbox: AnySandbox = None
    ) -> None:
        """Give a file or folder another name; what has it is replaced unless `replace` is False."""
        self._portal.call(self._wrapped.rename, source, target, replace=replace, sandbox=sandbox)

    def copy(
        self, source: RemotePath, target: RemotePath, *, recursive: bool = False, sandbox: AnySandbox = None
    ) -> None:
        """Copy a file or a link on the box, or with `recursive` a folder."""
        self._portal.call(self._wrapped.copy, source, target, recursive=recursive, sandbox=sandbox)

    def chmod(self, path: RemotePath, mode: int, *, sandbox: AnySandbox = None) -> None:
        """Set the permissions of what a path leads to (an extension)."""
        self._portal.call(self._wrapped.chmod, path, mode, sandbox=sandbox)

    def touch(
        self,
        path: RemotePath,
        *,
        modified_ns: int | None = None,
        accessed_ns: int | None = None,
        create: bool = True,
        sandbox: AnySandbox = None,
    ) -> None:
        """Set times, none for now; make an empty file where there is none (an extension)."""
        self._portal.call(
            self._wrapped.touch,
            path,
            modified_ns=modified_ns,
            accessed_ns=accessed_ns,
            create=create,
            sandbox=sandbox,
        )

    def canonicalize(self, path: RemotePath, *, sandbox: AnySandbox = None) -> str:
        """Return a path with every symlink resolved, as `os.fsdecode` has it."""
        return self._portal.call(self._wrapped.canonicalize, path, sandbox=sandbox)

    def read_many(
        self, path: RemotePath, names: Sequence[bytes], *, sandbox: AnySandbox = None
    ) -> tuple[FsReadManyFile, ...]:
        """Read files below a folder, each of 1 MiB at most; the answer may be about the first only."""
        return self._portal.call(self._wrapped.read_many, path, names, sandbox=sandbox)

    def write_many(
        self, path: RemotePath, entries: Sequence[FsWriteEntry], *, sandbox: AnySandbox = None
    ) -> tuple[FsWriteError, ...]:
        """Make, replace and remove what is below a folder, each entry as a whole; return what failed."""
        return self._portal.call(self._wrapped.write_many, path, entries, sandbox=sandbox)

    def write_parts(
        self, path: RemotePath, entries: Iterable[FsWriteEntry], *, sandbox: AnySandbox = None
    ) -> None:
        """Add pieces to a file below a folder, in order, each as an entry with `part` of `write_many`.

        Up to 4 MiB of them are on their way before the first is answered, and their bytes may go without
        base64 (an extension).  Raises `RequestFailed` as soon as one is refused.
        """
        self._portal.call(self._wrapped.write_parts, path, shapes.feed(entries), sandbox=sandbox)

    def archive(self, path: RemotePath, errors: Errors, *, sandbox: AnySandbox = None) -> Items[bytes]:
        """Yield the pieces of a tar archive of a file, or of what is in a folder (an extension).

        What could not be packed is added to `errors`.  The archive is what the box says it is: unpack it
        with care, or use `download`.
        """
        found = self._portal.run(self._wrapped.archive, path, errors, sandbox=sandbox)
        return Items(self._portal, found, shapes.same)

    def extract(self, path: RemotePath, pieces: Iterable[bytes], *, sandbox: AnySandbox = None) -> Errors:
        """Unpack a tar archive into a folder of the box; return what could not be unpacked (an extension).

        Raises ValueError for an archive that ends too early.
        """
        return self._portal.call(self._wrapped.extract, path, shapes.feed(pieces), sandbox=sandbox)

    def watch(
        self, path: RemotePath, *, recursive: bool = True, coalesce: float = 0.1, sandbox: AnySandbox = None
    ) -> FileWatch:
        """Watch a folder and all below it; iterate over what this opens for batches of what has changed.

        Changes are collected for `coalesce` seconds, at most 10.  Once it is open everything is watched.
        Raises `RequestFailed`, with the cure where a limit is reached, or `UnsupportedByServer`.
        """
        found = self._portal.call(
            shapes.settle,
            lambda: self._wrapped.watch(path, recursive=recursive, coalesce=coalesce, sandbox=sandbox),
        )
        return FileWatch(self._portal, found)

    def upload(
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
        return self._portal.call(self._wrapped.upload, local, remote, progress=progress, sandbox=sandbox)

    def download(
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
        return self._portal.call(
            self._wrapped.download,
            remote,
            local,
            progress=progress,
            max_bytes=max_bytes,
            sandbox=sandbox,
        )
