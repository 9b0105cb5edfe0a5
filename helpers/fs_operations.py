"""The operations of the file helper: from a checked request to the JSON text of its response, in pieces.

They are those of the server (`execserver.files`), with the same order of checks.  Each imports what it needs
itself, since one process performs one operation.  A request whose sandbox restricts files is performed only
in a sandbox root, behind the path guard; elsewhere NeedsSandbox is raised before anything is done.
"""

from __future__ import annotations

from execserver.protocol.errors import InvalidRequest
from execserver.protocol.json_text import quote
from execserver.protocol.paths import PathUri

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from execserver.files.copy import CopyOptions
    from execserver.files.walk import Walk, WalkOptions
    from execserver.sandbox.files.operations import GuardedFiles

    from .fs_no_symlinks import PathsWithoutSymlinks
    from .fs_request import FileRequest

_ENTRIES_AT_ONCE = 4096
_EMPTY = b"{}"
_JSON = {True: "true", False: "false"}


class NeedsSandbox(Exception):
    """The sandbox of a request restricts files, and this process is not in a sandbox root yet."""


class PlainFiles:
    """The operations without a sandbox, under the names of the guarded ones."""

    def open_regular(self, path: bytes) -> int:
        """Open a regular file for reading."""
        from execserver.files.opening import open_regular

        return open_regular(path)

    def open_target(self, path: bytes) -> int:
        """Open a file or a device for writing."""
        from execserver.files.opening import open_target

        return open_target(path)

    def create_directory(self, path: bytes, recursive: bool) -> None:
        """Make a directory, with `recursive` also its parents."""
        from execserver.files.metadata import create_directory

        create_directory(path, recursive)

    def get_metadata(self, path: bytes) -> tuple[bool, bool, bool, int, int]:
        """Return is_directory, is_file, is_symlink, size, time of modification in ms."""
        from execserver.files.metadata import get_metadata

        return get_metadata(path)

    def canonicalize(self, path: bytes) -> bytes:
        """Return the resolved path."""
        from execserver.files.metadata import canonicalize

        return canonicalize(path)

    def read_directory(self, path: bytes) -> list[tuple[str, bool, bool]]:
        """Return name, is_directory, is_file of every entry."""
        from execserver.files.metadata import read_directory

        return read_directory(path)

    def remove(self, path: bytes, recursive: bool, force: bool) -> None:
        """Remove a file, a symlink, or with `recursive` a tree."""
        from execserver.files.remove import remove

        remove(path, recursive, force)

    def copy(self, source: bytes, destination: bytes, recursive: bool, options: CopyOptions) -> None:
        """Copy a file, a symlink, or with `recursive` a tree."""
        from execserver.files.copy import copy

        copy(source, destination, recursive, options)

    def walk(self, root: bytes, options: WalkOptions) -> Walk:
        """List a directory with everything below it."""
        from execserver.files.walk import Walk

        found = Walk(options)
        found.run(root)
        return found


def perform(request: FileRequest, guarded: GuardedFiles | None = None) -> Iterator[bytes]:
    """Yield the response in pieces; the operation is done, or has failed, when the first one comes.

    Raises RpcError, OSError or NeedsSandbox; after the first piece only OSError, where a file cannot be read
    to its end.
    """
    return _OPERATIONS[request.operation](request, guarded)


def _files(request: FileRequest, guarded: GuardedFiles | None, *paths: PathUri) -> PlainFiles | GuardedFiles:
    """Return what performs a request, after the checks of all its paths and of its sandbox."""
    return _checked(request, guarded, *paths) or PlainFiles()


def _simple_files(
    request: FileRequest, guarded: GuardedFiles | None
) -> PlainFiles | GuardedFiles | PathsWithoutSymlinks:
    """Return the same for an operation that has the no-symlinks mode."""
    if request.links is not False:
        return _files(request, guarded)
    from .fs_no_symlinks import PathsWithoutSymlinks

    return PathsWithoutSymlinks(_checked(request, guarded))


def _checked(request: FileRequest, guarded: GuardedFiles | None, *paths: PathUri) -> GuardedFiles | None:
    """Return the operations behind the path guard if the request's sandbox needs them, after the checks."""
    if request.sandbox is not None:
        from execserver.sandbox.policy.request_check import file_request_needs_sandbox

        if file_request_needs_sandbox(request.sandbox, request.path, *paths):
            if guarded is None:
                raise NeedsSandbox
            return guarded
    return None


def _read_file(request: FileRequest, guarded: GuardedFiles | None) -> Iterator[bytes]:
    from execserver.files.reading import FileReader
    from execserver.protocol import base64

    files = _simple_files(request, guarded)
    pieces = FileReader(files.open_regular(request.path.native())).pieces()
    yield b'{"dataBase64":"' + base64.encode(next(pieces, b""))
    for piece in pieces:
        yield base64.encode(piece)
    yield b'"}'


def _write_file(request: FileRequest, guarded: GuardedFiles | None) -> Iterator[bytes]:
    from execserver.files.writing import replace_content
    from execserver.protocol import base64

    try:
        content = base64.decode(request.content)
    except base64.InvalidBase64 as reason:
        raise InvalidRequest(f"fs/writeFile requires valid base64 dataBase64: {reason}") from None
    files = _simple_files(request, guarded)
    request.content = ""  # frees the base64 text, a third more than the content, before the write
    replace_content(files.open_target(request.path.native()), content)
    yield _EMPTY


def _create_directory(request: FileRequest, guarded: GuardedFiles | None) -> Iterator[bytes]:
    files = _simple_files(request, guarded)
    files.create_directory(request.path.native(), request.recursive is not False)
    yield _EMPTY


def _get_metadata(request: FileRequest, guarded: GuardedFiles | None) -> Iterator[bytes]:
    files, born_ms = _simple_files(request, guarded), 0
    found = files.get_metadata(request.path.native())
    if len(found) == 2:
        found, born_ms = found
    is_directory, is_file, is_symlink, size, modified_at_ms = found
    yield (
        f'{{"isDirectory":{_JSON[is_directory]},"isFile":{_JSON[is_file]},"isSymlink":{_JSON[is_symlink]},'
        f'"size":{size},"createdAtMs":{born_ms},"modifiedAtMs":{modified_at_ms}}}'
    ).encode()


def _canonicalize(request: FileRequest, guarded: GuardedFiles | None) -> Iterator[bytes]:
    path = _files(request, guarded).canonicalize(request.path.native())
    yield b'{"path":"%b"}' % PathUri.from_native(path).uri.encode()


def _read_directory(request: FileRequest, guarded: GuardedFiles | None) -> Iterator[bytes]:
    found = _files(request, guarded).read_directory(request.path.native())
    opening = b'{"entries":['
    for start in range(0, len(found), _ENTRIES_AT_ONCE):
        entries = [
            f'{{"fileName":{quote(name)},"isDirectory":{_JSON[is_directory]},"isFile":{_JSON[is_file]}}}'
            for name, is_directory, is_file in found[start : start + _ENTRIES_AT_ONCE]
        ]
        yield opening + ",".join(entries).encode()
        opening = b","
    yield b"]}" if found else opening + b"]}"


def _remove(request: FileRequest, guarded: GuardedFiles | None) -> Iterator[bytes]:
    files = _simple_files(request, guarded)
    files.remove(request.path.native(), request.recursive is not False, request.force is not False)
    yield _EMPTY


def _copy(request: FileRequest, guarded: GuardedFiles | None) -> Iterator[bytes]:
    from execserver.files.copy import CopyOptions

    files = _files(request, guarded, request.destination)
    destination = request.destination.native()
    files.copy(request.path.native(), destination, request.recursive is True, CopyOptions())
    yield _EMPTY


def _walk(request: FileRequest, guarded: GuardedFiles | None) -> Iterator[bytes]:
    from execserver.files.walk import WalkOptions
    from execserver.protocol.pieces import walk_text

    options = WalkOptions(*request.walk)
    found = _files(request, guarded).walk(request.path.native(), options)
    yield from walk_text(found.entries, found.errors, found.truncated)


def _open(request: FileRequest, guarded: GuardedFiles | None) -> Iterator[bytes]:
    from .fs_open import hand_over
    from .fs_request import REPLACE

    files, path, replace = _files(request, guarded), request.path.native(), request.mode == REPLACE
    hand_over((files.open_target if replace else files.open_regular)(path), path, replace=replace)
    yield _EMPTY


def _discover_roots(request: FileRequest, guarded: GuardedFiles | None) -> Iterator[bytes]:
    from .fs_discovery import answer, restricting_sandbox

    request.sandbox = restricting_sandbox(request.roots)
    if request.sandbox is not None and guarded is None:
        raise NeedsSandbox
    yield from answer(request.roots, guarded or PlainFiles())


def _load_discoveries(request: FileRequest, guarded: GuardedFiles | None) -> Iterator[bytes]:
    from .fs_discovery import load

    yield load(request.locations, request.warnings, PlainFiles())


_OPERATIONS: dict[str, Callable[[FileRequest, GuardedFiles | None], Iterator[bytes]]] = {
    "capabilities/loadDiscoveries": _load_discoveries,
    "capabilityRoots/discoverV1": _discover_roots,
    "fs/open": _open,
    "fs/readFile": _read_file,
    "fs/writeFile": _write_file,
    "fs/createDirectory": _create_directory,
    "fs/getMetadata": _get_metadata,
    "fs/canonicalize": _canonicalize,
    "fs/readDirectory": _read_directory,
    "fs/walk": _walk,
    "fs/remove": _remove,
    "fs/copy": _copy,
}
