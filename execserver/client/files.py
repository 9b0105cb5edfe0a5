"""Files on the server: the fs/* methods under Python's names, and open files."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from execserver.client.errors import ExecServerError
from execserver.client.greenlets.session import Session
from execserver.client.operations import content, files
from execserver.client.operations.call import drive
from execserver.client.operations.content import BLOCK_BYTES, Handles
from execserver.client.rules.wire import RemotePath, Sandbox
from execserver.client.trees import TreeMethods
from execserver.protocol import files as fs
from execserver.protocol.changes import FsGetVersionResponse
from execserver.protocol.files import FileVersion
from execserver.protocol.paths import PathUri

if TYPE_CHECKING:
    from execserver.client.file_watches import FileWatch, Watches


class RemoteFile:
    """An open file; a context manager that closes it, and an iterator over its blocks.

    It belongs to one connection: after a loss its methods raise `NotFoundError`, and it must be opened again.
    """

    def __init__(self, session: Session, handle_id: str, mode: fs.FsOpenMode) -> None:
        self.handle_id = handle_id
        self.mode = mode
        self._session = session
        self._closed = False

    def read_block(self, offset: int, size: int = BLOCK_BYTES) -> bytes:
        """Return up to `size` (at most 1 MiB) bytes at `offset`; fewer only at the end of the file."""
        binary = self._session.extensions.binary_messages
        return drive(self._session, content.read_block(self.handle_id, offset, size, binary=binary))

    def write_block(self, offset: int, data: bytes) -> None:
        """Write bytes at `offset`; a hole before them reads as zeros."""
        drive(self._session, content.write_block(self.handle_id, offset, data))

    def __iter__(self) -> Iterator[bytes]:
        """Yield the content from the beginning in blocks of 1 MiB."""
        offset = 0
        while block := self.read_block(offset):
            yield block
            offset += len(block)

    def close(self) -> None:
        """Close the file on the server.  May be called again."""
        if self._closed:
            return
        self._closed = True
        drive(self._session, content.close(self.handle_id))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except ExecServerError:
            if error is None:
                raise


class RemoteFiles(TreeMethods):
    """The file methods; every path is absolute or a `file:` URI, every `sandbox` the contract's object.

    A refusal of the server is a `RequestFailed`: `NotFoundError` for a missing file, else the code's class.
    """

    def __init__(self, session: Session, watches: Watches) -> None:
        """`watches` are those of the session, by their ids."""
        self._session = session
        self._watches = watches
        self._handles = Handles()

    def read_file(self, path: RemotePath, *, sandbox: Sandbox = None, max_bytes: int | None = None) -> bytes:
        """Return the content of a regular file; above 8 MiB it is read block by block.

        Raises `FileTooLarge` for more than `max_bytes`, and for a file that proves to be more than 8 MiB
        larger than the server reported before: one that grows fast, or a server that never ends.
        """
        operation = content.read_file(self._handles, path, sandbox=sandbox, max_bytes=max_bytes)
        return drive(self._session, operation)

    def write_file(self, path: RemotePath, data: bytes, *, sandbox: Sandbox = None) -> None:
        """Create or replace a file; above 40 MiB block by block, which not every server offers."""
        info = self._session.environment_info
        drive(self._session, content.write_file(self._handles, path, data, info, sandbox))

    def stat(self, path: RemotePath, sandbox: Sandbox = None) -> FsGetVersionResponse:
        """Return the version and the permissions of a file (an extension, as the four that follow)."""
        return drive(self._session, files.stat(path, sandbox))

    def replace_file(
        self,
        path: RemotePath,
        content: bytes,
        *,
        mode: int | None = None,
        if_unchanged_since: FileVersion | None = None,
        must_not_exist: bool = False,
        sandbox: Sandbox = None,
    ) -> None:
        """Replace a file as a whole or not at all; only if it is still a version that `stat` has returned."""
        operation = files.replace_file(
            path,
            content,
            mode=mode,
            if_unchanged_since=if_unchanged_since,
            must_not_exist=must_not_exist,
            sandbox=sandbox,
        )
        drive(self._session, operation)

    def rename(
        self, source: RemotePath, destination: RemotePath, *, replace: bool = True, sandbox: Sandbox = None
    ) -> None:
        """Give a file or directory another name."""
        drive(self._session, files.rename(source, destination, replace, sandbox))

    def chmod(self, path: RemotePath, mode: int, sandbox: Sandbox = None) -> None:
        """Set the permissions of what a path leads to."""
        drive(self._session, files.chmod(path, mode, sandbox))

    def touch(
        self,
        path: RemotePath,
        *,
        modified_at_ns: int | None = None,
        accessed_at_ns: int | None = None,
        create: bool = True,
        sandbox: Sandbox = None,
    ) -> None:
        """Set the times of what a path leads to, none for now; make an empty file where there is none."""
        operation = files.touch(
            path,
            modified_at_ns=modified_at_ns,
            accessed_at_ns=accessed_at_ns,
            create=create,
            sandbox=sandbox,
        )
        drive(self._session, operation)

    def open_file(self, path: RemotePath, mode: str = "read", *, sandbox: Sandbox = None) -> RemoteFile:
        """Open a regular file: mode `read`, or `replace` to create or empty it for writing.

        Raises `UnsupportedByServer` for `replace` on a server that cannot write blocks.
        """
        info = self._session.environment_info
        operation = content.open_file(self._handles.new(), path, mode, info, sandbox)
        return RemoteFile(self._session, drive(self._session, operation), fs.FsOpenMode(mode))

    def watch(
        self,
        path: RemotePath,
        *,
        recursive: bool = True,
        coalesce: float = 0.1,
        sandbox: Sandbox = None,
    ) -> FileWatch:
        """Watch a directory and all below it; iterating the result yields batches of what has changed.

        Changes are collected for `coalesce` seconds, at most 10.  When this returns everything is watched.
        Raises `RequestFailed`, with the cure where a limit is reached, or `UnsupportedByServer`.
        """
        from execserver.client.file_watches import FileWatch  # late: few programs watch anything
        from execserver.client.operations.watches import watch_params

        params = watch_params(path, recursive=recursive, coalesce=coalesce, sandbox=sandbox)
        return FileWatch.open(self._session, self._watches, params)

    def create_directory(self, path: RemotePath, *, recursive: bool = True, sandbox: Sandbox = None) -> None:
        """Make a directory, with its parents unless `recursive` is False."""
        drive(self._session, files.create_directory(path, recursive, sandbox))

    def get_metadata(self, path: RemotePath, *, sandbox: Sandbox = None) -> fs.FsGetMetadataResponse:
        """Return kind, size and times of the file at a path."""
        return drive(self._session, files.get_metadata(path, sandbox))

    def canonicalize(self, path: RemotePath, *, sandbox: Sandbox = None) -> PathUri:
        """Return the path with every symlink resolved."""
        return drive(self._session, files.canonicalize(path, sandbox))

    def read_directory(
        self, path: RemotePath, *, sandbox: Sandbox = None
    ) -> tuple[fs.FsReadDirectoryEntry, ...]:
        """Return the names in a directory, unsorted."""
        return drive(self._session, files.read_directory(path, sandbox))

    def remove(
        self, path: RemotePath, *, recursive: bool = True, force: bool = True, sandbox: Sandbox = None
    ) -> None:
        """Remove a file, a link or a tree; with `force` a missing path is fine."""
        drive(self._session, files.remove(path, recursive, force, sandbox))

    def copy(
        self,
        source: RemotePath,
        destination: RemotePath,
        *,
        recursive: bool = False,
        sandbox: Sandbox = None,
    ) -> None:
        """Copy a file or a link, or with `recursive` a directory."""
        drive(self._session, files.copy(source, destination, recursive, sandbox))

    def walk(
        self, path: RemotePath, options: fs.FsWalkOptions | None = None, *, sandbox: Sandbox = None
    ) -> fs.FsWalkResponse:
        """List a directory and everything below it, level by level, within the limits of `options`."""
        return drive(self._session, files.walk(path, options, sandbox))
