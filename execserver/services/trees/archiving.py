"""Packs a file or a tree as a tar archive (pax) in pages, which follow each other without a gap.

The server keeps nothing between two pages: a page begins where the client says that the last one ended, with
the size that the file had in its header.  A file that has become shorter is filled up with zeros, as `tar`
does, and told as an error.  Owners are left out: who unpacks it owns the files.
"""

from __future__ import annotations

import os
import stat
import tarfile

from execserver.protocol.errors import InvalidRequest, RpcError
from execserver.protocol.files import FsOpenMode, FsWalkError
from execserver.protocol.paths import PathUri
from execserver.protocol.trees import MAX_PAGE, ArchivePosition, FsArchiveParams, FsArchiveResponse
from execserver.services.files.filesystem import FileService
from execserver.services.files.sandboxed import ConfinedFiles
from execserver.services.trees.pages import TreePage

PAGE_BYTES = 1024 * 1024  # of a page, but for the header that reaches it
_BLOCK = tarfile.BLOCKSIZE
_END = bytes(2 * _BLOCK)


class ArchivePage:
    """One page of an archive."""

    def __init__(
        self, service: FileService, files: FileService | ConfinedFiles, params: FsArchiveParams
    ) -> None:
        self._service = service
        self._files = files
        self._params = params
        self._data = bytearray()
        self._at = params.position
        if self._at is not None and self._at.offset > self._at.size:
            raise InvalidRequest("`offset` of the position is beyond its `size`")

    def run(self) -> FsArchiveResponse:
        """Return the page.  Raises OSError and RpcError for the root, and for a file that is half sent."""
        if not self._files.get_metadata(self._params.path.native())[0]:
            return self._of_one_file()
        at = self._at
        page = TreePage(self._files, self._params.path, at.path if at else None, MAX_PAGE, links=True)
        if at is not None and at.offset < at.size:
            below = page.below(at.path)
            self._content(page, page.path(below), below)
        if self._is_full():
            return self._answer(page)
        for below, is_directory in page:
            begun = len(self._data)
            try:
                self._add(page, below, is_directory)
                page.count()
            except (OSError, RpcError) as error:
                del self._data[begun:]  # a header without its content would spoil all that follows
                page.refuse(below, error)
                self._at = ArchivePosition(path=page.uri(below), offset=0, size=0)
            if self._is_full():
                return self._answer(page)
        if page.next is not None:
            self._at = ArchivePosition(path=page.next, offset=0, size=0)
            return self._answer(page)
        self._data += _END
        self._at = None
        return self._answer(page)

    def _of_one_file(self) -> FsArchiveResponse:
        page = _Alone(self._params.path)
        if self._at is None:
            name = os.path.basename(self._params.path.native())
            self._add_file(page, self._params.path.native(), name, self._params.path)
        else:
            self._content(page, page.path(b""), b"")
        if self._at is not None and self._at.offset == self._at.size:
            self._data += _END
            self._at = None
        return self._answer(page)

    def _answer(self, page: TreePage | _Alone) -> FsArchiveResponse:
        return FsArchiveResponse(chunk=bytes(self._data), errors=tuple(page.errors), next=self._at)

    def _is_full(self) -> bool:
        return len(self._data) >= PAGE_BYTES

    def _add(self, page: TreePage, below: bytes, is_directory: bool) -> None:
        path, uri = page.path(below), page.uri(below)
        mode, modified_ns, _, target = self._files.look(path)
        if not target and not is_directory:
            self._add_file(page, path, below, uri)
            return
        info = _header(below, mode, modified_ns)
        info.type = tarfile.SYMTYPE if target else tarfile.DIRTYPE
        info.linkname = target.decode("utf-8", "surrogateescape")
        self._data += _encoded(info)
        self._at = ArchivePosition(path=uri, offset=0, size=0)

    def _add_file(self, page: TreePage | _Alone, path: bytes, name: bytes, uri: PathUri) -> None:
        file = self._files.open(path, FsOpenMode.READ)
        try:
            status = os.fstat(file.fd)
        finally:
            self._service.release(file.fd)
        info = _header(name, stat.S_IMODE(status.st_mode), status.st_mtime_ns)
        info.size = status.st_size
        self._data += _encoded(info)
        self._at = ArchivePosition(path=uri, offset=0, size=status.st_size)
        if status.st_size:
            self._content(page, path, name)

    def _content(self, page: TreePage | _Alone, path: bytes, below: bytes) -> None:
        """Add content of the current file, until it or the page is at its end."""
        assert self._at is not None
        uri, offset, size = self._at.path, self._at.offset, self._at.size
        file = self._files.open(path, FsOpenMode.READ)
        try:
            while offset < size and not self._is_full():
                wanted = min(size - offset, PAGE_BYTES - len(self._data))
                block = self._service.read_block(file, offset, wanted)
                if not block:
                    page.refuse(below, InvalidRequest("file has become shorter; zeros stand for the rest"))
                    block = bytes(wanted)
                self._data += block
                offset += len(block)
        finally:
            self._service.release(file.fd)
        if offset == size:
            self._data += bytes(-size % _BLOCK)
        self._at = ArchivePosition(path=uri, offset=offset, size=size)


class _Alone:
    """In place of a walk, for a single file."""

    def __init__(self, uri: PathUri) -> None:
        self.errors: list[FsWalkError] = []
        self._uri = uri

    def path(self, below: bytes) -> bytes:
        """Return the path of the file."""
        return self._uri.native()

    def refuse(self, below: bytes, error: RpcError) -> None:
        """Note an error."""
        self.errors.append(FsWalkError(path=self._uri, message=error.message))


def _header(name: bytes, mode: int, modified_ns: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name.decode("utf-8", "surrogateescape"))
    info.mode = mode
    seconds, rest = divmod(modified_ns, 10**9)
    info.mtime = max(seconds, 0)
    # As text: a float has not enough digits for nanoseconds.
    info.pax_headers = {"mtime": f"{seconds}.{rest:09}" if seconds >= 0 else f"{modified_ns / 10**9:.9f}"}
    return info


def _encoded(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
