"""Searches the lines of files: they are opened and read as any file, and matched in a process of their own.

Binary files (a NUL byte near the beginning) are passed over.  A file in which a pattern takes longer than
`_FILE_S` is told as an error, and the process that matched it is killed.
"""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Callable

import gevent
from gevent.lock import BoundedSemaphore
from gevent.os import nb_read, nb_write

from execserver.protocol.errors import InternalError, InvalidParams, InvalidRequest, RpcError
from execserver.protocol.files import FsOpenMode, FsWalkError
from execserver.protocol.paths import PathUri
from execserver.protocol.trees import FsSearchMatch, FsSearchParams, FsSearchResponse
from execserver.runtime_paths import SEARCH_ARGUMENT, ExecServerRuntimePaths
from execserver.services.files.filesystem import FileService
from execserver.services.files.sandboxed import ConfinedFiles
from execserver.services.launch.child import Child
from execserver.services.launch.start_request import SpawnSpec
from execserver.services.trees.globbing import PathMatcher
from execserver.services.trees.ignoring import Ignored
from execserver.services.trees.pages import TreePage

MAX_BYTES = 16 * 1024 * 1024  # of a file that is searched
MAX_PATTERN = 4096  # characters
MAX_OF_A_FILE = 1000  # lines; the searcher stops there
_CUT = f"only the first {MAX_OF_A_FILE} lines that match are told"
_BLOCK_BYTES = 1024 * 1024
_BINARY_BYTES = 8192  # looked at for a NUL byte
_FILE_S = 3.0
_START_S = 10.0
_ANSWER_BYTES = 8 * 1024 * 1024  # above what a thousand lines can take
_SEARCHERS = 4  # at a time; further searches wait
_WAIT_S = 30.0
_LENGTH = struct.Struct(">I")
_MATCH = struct.Struct(">III")

Spawn = Callable[[SpawnSpec], Child]

_turns = BoundedSemaphore(_SEARCHERS)


class Searcher:
    """A process that matches one pattern; owns it and its pipes until `close`."""

    def __init__(self, spawn: Spawn, params: FsSearchParams) -> None:
        """Raises InvalidParams for a pattern that is none, InternalError if there is no process."""
        if not 0 < len(params.pattern) <= MAX_PATTERN:
            raise InvalidParams(f"malformed pattern: it has 1 to {MAX_PATTERN} characters")
        flags = b"f" + (b"i" if params.ignore_case else b"") + (b"l" if params.literal else b"")
        self.usable = True
        command = ExecServerRuntimePaths.detect().command(SEARCH_ARGUMENT)
        self._child = spawn(SpawnSpec(command, {}, b"/", pipe_stdin=True))
        try:
            complaint = self._ask(flags + b" " + params.pattern.encode("utf-8", "replace"), _START_S)
        except BaseException:
            self.close()
            raise
        if complaint:
            self.close()
            raise InvalidParams(f"malformed pattern: {complaint.decode('utf-8', 'replace')[:200]}")

    def search(self, content: bytes) -> list[tuple[int, int, str]]:
        """Return line, column and text of every line with a match.  After an error only `close` is left."""
        answer = self._ask(content, _FILE_S)
        found, at = [], 0
        while at < len(answer):
            line, column, length = _MATCH.unpack_from(answer, at)
            at += _MATCH.size + length
            found.append((line, column, answer[at - length : at].decode("utf-8", "replace")))
        return found

    def close(self) -> None:
        """End the process."""
        self.usable = False
        for descriptor in (self._child.stdin_fd, *(fd for _, fd in self._child.outputs)):
            if descriptor is not None:
                os.close(descriptor)
        self._child.outputs, self._child.stdin_fd = [], None
        if not self._child.exited:
            self._child.signal(signal.SIGKILL)

    def _ask(self, frame: bytes, limit_s: float) -> bytes:
        self.usable = False  # until the whole answer is there
        late = InvalidRequest("the pattern takes too long here")
        with gevent.Timeout(limit_s, late):
            try:
                self._write(_LENGTH.pack(len(frame)) + frame)
                length = _LENGTH.unpack(self._read(_LENGTH.size))[0]
                if length > _ANSWER_BYTES:
                    raise InternalError("the searcher sends too much")
                answer = self._read(length)
            except OSError:
                raise InternalError("the searcher has ended") from None
        self.usable = True
        return answer

    def _write(self, data: bytes) -> None:
        assert self._child.stdin_fd is not None
        left = memoryview(data)
        while left:
            left = left[nb_write(self._child.stdin_fd, left[:_BLOCK_BYTES]) :]

    def _read(self, length: int) -> bytes:
        (_, stdout), *_ = self._child.outputs
        pieces, got = [], 0
        while got < length:
            piece = nb_read(stdout, min(length - got, _BLOCK_BYTES))
            if not piece:
                raise InternalError("the searcher has ended: the pattern may need too much memory")
            pieces.append(piece)
            got += len(piece)
        return b"".join(pieces)


class Search:
    """One page of a search."""

    def __init__(
        self,
        spawn: Spawn,
        service: FileService,
        files: FileService | ConfinedFiles,
        params: FsSearchParams,
    ) -> None:
        self._spawn = spawn
        self._service = service
        self._files = files
        self._params = params
        self._include = None if params.include is None else PathMatcher(params.include)
        self._ignored: Ignored | None = None
        self._found: list[FsSearchMatch] = []

    def run(self) -> FsSearchResponse:
        """Return the page.  Raises OSError and RpcError for the path itself and the pattern only."""
        if not _turns.acquire(timeout=_WAIT_S):
            raise InternalError(f"{_SEARCHERS} searches are running, and none has ended for {_WAIT_S:g} s")
        try:
            return self._run()
        finally:
            _turns.release()

    def _run(self) -> FsSearchResponse:
        path = self._params.path.native()
        self._searcher = Searcher(self._spawn, self._params)
        try:
            if not self._files.get_metadata(path)[0]:
                is_cut = self._search(path, self._params.path) >= MAX_OF_A_FILE
                errors = (FsWalkError(path=self._params.path, message=_CUT),) if is_cut else ()
                return FsSearchResponse(matches=tuple(self._found), errors=errors, next=None)
            page = TreePage(self._files, self._params.path, self._params.after, self._params.max_matches)
            if self._params.gitignore:
                self._ignored = Ignored(self._service, self._files, page.root, page.refuse)
            for below, is_directory in page:
                if self._is_wanted(page, below, is_directory):
                    self._search_entry(page, below)
            return FsSearchResponse(matches=tuple(self._found), errors=tuple(page.errors), next=page.next)
        finally:
            self._searcher.close()

    def _is_wanted(self, page: TreePage, below: bytes, is_directory: bool) -> bool:
        # By all names: a page may begin within a directory at which the one before it ended.
        if not self._params.hidden and any(name.startswith(b".") for name in below.split(b"/")):
            page.prune()
            return False
        if self._ignored is not None and self._ignored.match(below, is_directory):
            page.prune()
            return False
        if self._include is None:
            return not is_directory
        matches, may_below = self._include.match(below)
        if is_directory and not may_below:
            page.prune()
        return matches and not is_directory

    def _search_entry(self, page: TreePage, below: bytes) -> None:
        try:
            found = self._search(page.path(below), page.uri(below))
            page.count(found)
            if found >= MAX_OF_A_FILE:
                page.refuse(below, InvalidRequest(_CUT))
        except (OSError, RpcError) as error:
            page.refuse(below, error)
            if not self._searcher.usable:
                self._searcher.close()
                self._searcher = Searcher(self._spawn, self._params)

    def _search(self, path: bytes, uri: PathUri) -> int:
        content = self._content(path)
        if content is None:
            return 0
        found = self._searcher.search(content)
        self._found += [FsSearchMatch(path=uri, line=line, column=at, text=text) for line, at, text in found]
        return len(found)

    def _content(self, path: bytes) -> bytes | None:
        """Return the content of a file, None if it is empty or binary."""
        file = self._files.open(path, FsOpenMode.READ)
        try:
            pieces: list[bytes] = []
            size = 0
            while block := self._service.read_block(file, size, _BLOCK_BYTES):
                if not pieces and b"\0" in block[:_BINARY_BYTES]:
                    return None
                pieces.append(block)
                size += len(block)
                if size > MAX_BYTES:
                    raise InvalidRequest(f"files of more than {MAX_BYTES} bytes are not searched")
                gevent.sleep(0)
        finally:
            self._service.release(file.fd)
        return b"".join(pieces) or None
