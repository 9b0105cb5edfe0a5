"""Unpacks a tar archive below a directory, chunk by chunk; nothing is kept between two chunks.

Each entry is made by the operations of `FileService` or of a sandboxed request that refuse every symlink on
their way, so an archive leads nowhere else.  Absolute names, `..`, hard links and devices are refused.  A
refused entry is an error among others; the rest of the archive is unpacked.
"""

from __future__ import annotations

import errno
import os

from gevent import sleep

from execserver.core import tar_chunk
from execserver.core.tar_chunk import Head
from execserver.protocol.errors import InvalidParams, InvalidRequest, NotFound, RpcError, from_os_error
from execserver.protocol.files import FsWalkError
from execserver.protocol.paths import PathUri
from execserver.protocol.tar_header import BLOCK
from execserver.protocol.trees import ExtractPosition, FsExtractParams, FsExtractResponse
from execserver.services.files.filesystem import FileService
from execserver.services.files.sandboxed import ConfinedFiles

MAX_CHUNK_BYTES = 1024 * 1024


class Extraction:
    """One chunk of an archive."""

    def __init__(
        self, service: FileService, files: FileService | ConfinedFiles, params: FsExtractParams
    ) -> None:
        """Raises InvalidParams for a chunk that is none."""
        chunk = bytes(params.chunk)
        if len(chunk) % BLOCK or len(chunk) > MAX_CHUNK_BYTES:
            raise InvalidParams(f"a chunk has whole blocks of {BLOCK} bytes, and at most {MAX_CHUNK_BYTES}")
        self._service = service
        self._files = files
        self._shown = params.path.native().rstrip(b"/")
        self._chunk = chunk
        self._at = 0
        self._position = params.position
        self._errors: list[FsWalkError] = []

    def run(self, root: bytes) -> FsExtractResponse:
        """Unpack what is whole.  Raises OSError and RpcError for the root, and for what is no tar."""
        self._root = self._files.canonicalize(root).rstrip(b"/")
        if self._position is not None:
            self._go_on(self._position)
        done = False
        while self._at < len(self._chunk) and not done:
            sleep(0)
            if tar_chunk.is_end(self._chunk, self._at):
                done = True
                self._at = len(self._chunk)
            elif not self._entry():
                break
        return FsExtractResponse(
            consumed=self._at, position=self._position, errors=tuple(self._errors), done=done
        )

    def _entry(self) -> bool:
        """Make the next entry; return False if its header is not whole yet."""
        head = tar_chunk.next_head(self._chunk, self._at)
        if head is None:
            return False
        self._at = head.content_at
        begun = ExtractPosition(
            path=PathUri.from_native(self._shown + b"/" + head.name.strip(b"/")),
            offset=0,
            size=head.size,
            mode=head.mode,
            modified_at_ns=head.modified_ns,
            refused=False,
        )
        self._make(head, begun)
        return True

    def _make(self, head: Head, begun: ExtractPosition) -> None:
        try:
            below = _checked(head.name)
            path = self._root + b"/" + below
            if head.kind == tar_chunk.DIRECTORY:
                if below:
                    self._files.create_directory(path, recursive=True, links=False)
                    self._files.chmod(path, begun.mode | 0o700, links=False)
            elif head.kind == tar_chunk.SYMLINK:
                self._link(head.target, path)
            elif head.kind == tar_chunk.FILE and below:
                self._clear(path)
                self._files.write_file(path, b"", links=False)
            else:
                raise InvalidRequest("only files, directories and symlinks are unpacked")
        except (OSError, RpcError) as error:
            self._refuse(begun, error)
            begun = ExtractPosition(
                path=begun.path, offset=0, size=begun.size, mode=0, modified_at_ns=0, refused=True
            )
        if begun.size or (head.kind == tar_chunk.FILE and not begun.refused):
            self._go_on(begun)

    def _link(self, text: bytes, path: bytes) -> None:
        try:
            if self._files.look(path)[3] == text:
                return  # it is there already
        except (OSError, RpcError):
            pass  # the next steps say what is wrong
        self._clear(path)
        self._files.symlink(text, path)

    def _clear(self, path: bytes) -> None:
        """Make the parents of a name, and take away a file that has it: it may have other names elsewhere."""
        self._files.create_directory(os.path.dirname(path), recursive=True, links=False)
        try:
            is_directory = self._files.get_metadata_without_symlinks(path)[0][0]
        except (FileNotFoundError, NotFound):
            return
        if is_directory:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        self._files.remove(path, recursive=False, force=True, links=False)

    def _go_on(self, at: ExtractPosition) -> None:
        """Write what the chunk has of a file's content, and finish the file if that is all."""
        left = max(0, at.size - at.offset)
        part = self._chunk[self._at : self._at + left]
        end = at.offset + len(part)
        self._at = tar_chunk.behind(self._chunk, self._at, left)
        refused = at.refused
        if not refused:
            try:
                self._write(at, part, end)
            except (OSError, RpcError) as error:
                self._refuse(at, error)
                refused = True
        self._position = None
        if end < at.size:
            self._position = ExtractPosition(
                path=at.path,
                offset=end,
                size=at.size,
                mode=at.mode,
                modified_at_ns=at.modified_at_ns,
                refused=refused,
            )

    def _write(self, at: ExtractPosition, part: bytes, end: int) -> None:
        shown = at.path.native()
        if not shown.startswith(self._shown + b"/"):
            raise InvalidRequest("the position must be below `path`")
        path = self._root + b"/" + _checked(shown[len(self._shown) + 1 :])
        if part:
            file = self._files.open_part(path)
            try:
                self._service.write_block(file, at.offset, part)
            finally:
                self._service.release(file.fd)
        if end == at.size:
            self._files.chmod(path, at.mode, links=False)
            self._files.touch(path, (-1, at.modified_at_ns), create=False, links=False)

    def _refuse(self, at: ExtractPosition, error: OSError | RpcError) -> None:
        known = from_os_error(error) if isinstance(error, OSError) else error
        self._errors.append(FsWalkError(path=at.path, message=known.message))


def _checked(name: bytes) -> bytes:
    """Return a relative name without `.`.  Raises InvalidRequest for one that could lead elsewhere."""
    names = [each for each in name.split(b"/") if each not in (b"", b".")]
    if name.startswith(b"/") or b".." in names or b"\0" in name:
        raise InvalidRequest("the name is absolute, or has `..` in it")
    return b"/".join(names)
