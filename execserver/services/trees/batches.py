"""Lists, reads and writes many files in one request: what keeping two trees the same consists of.

Each entry is read or written by itself: what fails is told, and the others are done.  No symlink below the
directory of the request is followed for writing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from gevent import sleep

from execserver.files import placing
from execserver.files.part import Busy
from execserver.protocol.batches import (
    FsListEntry,
    FsListParams,
    FsListResponse,
    FsNodeKind,
    FsReadManyFile,
    FsReadManyParams,
    FsReadManyResponse,
    FsWriteEntry,
    FsWriteError,
    FsWriteManyParams,
    FsWriteManyResponse,
    FsWritePartParams,
)
from execserver.protocol.errors import InvalidParams, InvalidRequest, RpcError, from_os_error
from execserver.protocol.files import FsOpenMode
from execserver.protocol.paths import PathUri
from execserver.services.files.filesystem import FileService
from execserver.services.files.sandboxed import ConfinedFiles
from execserver.services.trees.confined_batches import write_confined
from execserver.services.trees.pages import TreePage

T = TypeVar("T")

MAX_NAMES = 10_000  # of one request
READ_BYTES = 1024 * 1024  # of content in one answer; a larger file is read in blocks
_IN_A_THREAD = 256 * 1024  # bytes of content that are written by a thread
_TURN_S = 0.002  # between two chances for others to run
_BUSY_S = 10.0  # for what is being written to a part to be there; of one request
_BUSY_STEP_S = 0.01  # at first, and then twice as long each time
_LONGEST_STEP_S = 0.16


class Turn:
    """The turn of one request's pieces: a lost connection may have left one behind that is being written.

    All of them together wait `_BUSY_S` at most, and none once its client is gone: that sends it again, and
    what comes late would begin anew what has come since.
    """

    def __init__(self, writer: str, is_over: Callable[[], bool]) -> None:
        self.writer = writer
        self._is_over = is_over
        self._left_s = _BUSY_S

    def take(self, put: Callable[[], None]) -> None:
        """Write a piece once no other is being written.  Raises Busy."""
        step = _BUSY_STEP_S
        while True:
            try:
                return put()
            except Busy:
                if self._left_s <= 0:
                    raise
                begun = time.monotonic()
                sleep(step)
                self._left_s -= time.monotonic() - begun
                step = min(2 * step, _LONGEST_STEP_S)
                if self._is_over():
                    raise


def list_tree(files: FileService | ConfinedFiles, params: FsListParams) -> FsListResponse:
    """Return one page: the path itself, and below a directory each one by name before what is in it."""
    root = params.path.native()
    entries: list[FsListEntry] = []
    if params.after is None:
        top = _listed(files, root, b"", is_directory=False)
        if top.kind is FsNodeKind.FILE and files.get_metadata(root)[0]:
            top = _listed(files, root, b"", is_directory=True)
        entries.append(top)
        if top.kind is not FsNodeKind.DIRECTORY:
            return FsListResponse(entries=tuple(entries), errors=(), next=None)
    after = None
    if params.after is not None:
        after = PathUri.from_native(root.rstrip(b"/") + b"/" + _checked(bytes(params.after)))
    page = TreePage(files, params.path, after, params.max_entries, links=True)
    for below, is_directory in page:
        try:
            entries.append(_listed(files, page.path(below), below, is_directory))
            page.count()
        except (OSError, RpcError) as error:
            page.refuse(below, error)
    following = None if page.next is None else page.below(page.next)
    return FsListResponse(
        entries=tuple(entries), errors=tuple(page.errors), next=following, others=tuple(page.others)
    )


def _listed(files: FileService | ConfinedFiles, path: bytes, below: bytes, is_directory: bool) -> FsListEntry:
    mode, modified_ns, size, target = files.look(path)
    kind = FsNodeKind.FILE
    if target or is_directory:
        kind = FsNodeKind.SYMLINK if target else FsNodeKind.DIRECTORY
    return FsListEntry(
        name=below,
        kind=kind,
        size=size if kind is FsNodeKind.FILE else 0,
        modified_at_ns=modified_ns,
        mode=mode,
        target=target or None,
    )


def read_many(
    service: FileService, files: FileService | ConfinedFiles, params: FsReadManyParams
) -> FsReadManyResponse:
    """Read files until the answer is full; at least one is in it."""
    _check_number(len(params.names))
    root = files.canonicalize(params.path.native()).rstrip(b"/")
    found: list[FsReadManyFile] = []
    left = READ_BYTES
    for name in _with_turns(params.names):
        try:
            content = _content(service, files, root + b"/" + _checked(bytes(name)))
        except (OSError, RpcError) as error:
            found.append(FsReadManyFile(error=_text(error)))
            continue
        left -= len(content)
        if left < 0 and found:
            break
        found.append(FsReadManyFile(content=content))
    return FsReadManyResponse(files=tuple(found))


def _content(service: FileService, files: FileService | ConfinedFiles, path: bytes) -> bytes:
    file = files.open(path, FsOpenMode.READ)
    try:
        if os.fstat(file.fd).st_size > READ_BYTES:
            raise InvalidRequest(f"more than {READ_BYTES} bytes: read it in blocks")
        return service.read_block(file, 0, READ_BYTES)
    finally:
        service.release(file.fd)


def write_many(
    service: FileService, files: FileService | ConfinedFiles, params: FsWriteManyParams, turn: Turn
) -> FsWriteManyResponse:
    """Write entries in their order.

    Raises OSError and RpcError for the directory itself only.
    """
    _check_number(len(params.entries))
    root = files.canonicalize(params.path.native()).rstrip(b"/")
    errors: list[FsWriteError] = []
    numbered = list(enumerate(params.entries))
    for index, entry in _with_turns(numbered):
        try:
            _put(service, files, root, entry, turn)
        except (OSError, RpcError) as error:
            errors.append(FsWriteError(index=index, message=_text(error)))
    return FsWriteManyResponse(errors=tuple(errors))


def write_part(
    service: FileService, files: FileService | ConfinedFiles, params: FsWritePartParams, turn: Turn
) -> None:
    """Write a piece of a file.  Raises OSError and RpcError."""
    root = files.canonicalize(params.path.native()).rstrip(b"/")
    entry = FsWriteEntry(
        name=params.name,
        kind=FsNodeKind.FILE,
        mode=params.mode,
        modified_at_ns=params.modified_at_ns,
        content=params.chunk,
        part=params.part,
        offset=params.offset,
        size=params.size,
    )
    _put(service, files, root, entry, turn)


def _put(
    service: FileService, files: FileService | ConfinedFiles, root: bytes, entry: FsWriteEntry, turn: Turn
) -> None:
    below = _checked(bytes(entry.name))
    path = root + b"/" + below if below else root or b"/"
    _check(entry, below)

    def put() -> None:
        if isinstance(files, ConfinedFiles):
            write_confined(service, files, path, entry, turn.writer)
        else:
            _write(service, path, entry, turn.writer)

    turn.take(put)


def _check(entry: FsWriteEntry, below: bytes) -> None:
    if entry.kind is FsNodeKind.SYMLINK and not entry.target:
        raise InvalidRequest("a symlink needs a `target`")
    if entry.kind is not FsNodeKind.DIRECTORY and not below:
        raise InvalidRequest("the directory itself can only be a directory")
    part = entry.part
    if part is not None and (not part or b"/" in part or b"\0" in part or part in (b".", b"..")):
        raise InvalidRequest("`part` is a name beside the file")
    if part is not None and entry.offset + len(entry.content or b"") > entry.size:
        raise InvalidRequest("`content` is beyond `size`")


def _write(service: FileService, path: bytes, entry: FsWriteEntry, writer: str) -> None:
    work = _work(path, entry, writer)
    if entry.content is not None and len(entry.content) > _IN_A_THREAD and service.is_local(path):
        service.in_thread(lambda pause: work())
    else:
        service.place(path, work)


def _work(path: bytes, entry: FsWriteEntry, writer: str) -> Callable[[], None]:
    """Return what makes an entry; a function with everything it needs, since it may run in a thread."""
    stamp = (entry.mode, entry.modified_at_ns)
    content = None if entry.content is None else bytes(entry.content)
    if entry.kind is FsNodeKind.ABSENT:
        return lambda: placing.take_away(path)
    if entry.kind is FsNodeKind.DIRECTORY:
        return lambda: placing.put_directory(path, stamp)
    if entry.kind is FsNodeKind.SYMLINK:
        return lambda: placing.put_symlink(path, bytes(entry.target or b""), entry.modified_at_ns)
    if content is None:
        return lambda: placing.stamp_file(path, stamp)
    if entry.part is not None:
        piece = placing.Piece(bytes(entry.part), entry.offset, content, entry.size, writer)
        return lambda: placing.put_part(path, piece, stamp)
    return lambda: placing.put_file(path, content, stamp)


def _checked(name: bytes) -> bytes:
    """Return a relative name.  Raises InvalidRequest for one that could lead elsewhere."""
    parts = name.split(b"/")
    if name and (b"" in parts or b"." in parts or b".." in parts or b"\0" in name):
        raise InvalidRequest("a name is relative, and has no empty part, `.` or `..`")
    return name


def _check_number(number: int) -> None:
    if number > MAX_NAMES:
        raise InvalidParams(f"at most {MAX_NAMES} names in one request")


def _text(error: OSError | RpcError) -> str:
    return from_os_error(error).message if isinstance(error, OSError) else error.message


def _with_turns(items: Sequence[T]) -> Iterator[T]:
    turn = time.monotonic()
    for item in items:
        if time.monotonic() - turn > _TURN_S:
            sleep(0)
            turn = time.monotonic()
        yield item
