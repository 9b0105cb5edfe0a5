"""The operations of the file helper: a checked request -> the JSON text of its response, in pieces.

They are those of the server (`execserver.files`), with the same order of checks.  Each loads what it needs
itself, since one process performs one of them.  A request whose sandbox restricts anything is refused, as by
the server: this process does not confine itself.
"""

from __future__ import annotations

from execserver.protocol.errors import InvalidRequest
from execserver.protocol.paths import PathUri
from helpers.json_text import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from helpers.fs_request import FileRequest

_ENTRIES_AT_ONCE = 4096
_EMPTY = b"{}"
_JSON = {True: "true", False: "false"}


def perform(request: FileRequest) -> Iterator[bytes]:
    """Yield the response in pieces; the operation is done, or has failed, when the first one comes.

    Raises RpcError or OSError; after the first piece only where a file cannot be read to its end.
    """
    return _OPERATIONS[request.operation](request)


def _native(request: FileRequest, *paths: PathUri) -> bytes:
    """Return the path of a request, after the checks of all its paths and of its sandbox."""
    if request.sandbox is not None:
        from execserver.sandbox.intent import cannot_enforce_files, file_request_needs_sandbox

        if file_request_needs_sandbox(request.sandbox, request.path, *paths):
            raise cannot_enforce_files()
    return request.path.native()


def _read_file(request: FileRequest) -> Iterator[bytes]:
    from execserver.files.reading import FileReader
    from execserver.protocol import base64

    path = _native(request)
    pieces = FileReader.open(path).pieces()
    yield b'{"dataBase64":"' + base64.encode(next(pieces, b""))
    for piece in pieces:
        yield base64.encode(piece)
    yield b'"}'


def _write_file(request: FileRequest) -> Iterator[bytes]:
    from execserver.files.writing import write_file
    from execserver.protocol import base64

    try:
        content = base64.decode(request.content)
    except base64.InvalidBase64 as reason:
        raise InvalidRequest(f"fs/writeFile requires valid base64 dataBase64: {reason}") from None
    request.content = ""  # the text is a third longer than what it stands for
    write_file(_native(request), content)
    yield _EMPTY


def _create_directory(request: FileRequest) -> Iterator[bytes]:
    from execserver.files.metadata import create_directory

    create_directory(_native(request), request.recursive is not False)
    yield _EMPTY


def _get_metadata(request: FileRequest) -> Iterator[bytes]:
    from execserver.files.metadata import get_metadata

    is_directory, is_file, is_symlink, size, modified_at_ms = get_metadata(_native(request))
    yield (
        f'{{"isDirectory":{_JSON[is_directory]},"isFile":{_JSON[is_file]},"isSymlink":{_JSON[is_symlink]},'
        f'"size":{size},"createdAtMs":0,"modifiedAtMs":{modified_at_ms}}}'
    ).encode()


def _canonicalize(request: FileRequest) -> Iterator[bytes]:
    from execserver.files.metadata import canonicalize

    yield b'{"path":"%b"}' % PathUri.from_native(canonicalize(_native(request))).uri.encode()


def _read_directory(request: FileRequest) -> Iterator[bytes]:
    from execserver.files.metadata import read_directory

    found = read_directory(_native(request))
    opening = b'{"entries":['
    for start in range(0, len(found), _ENTRIES_AT_ONCE):
        entries = [
            f'{{"fileName":{quote(name)},"isDirectory":{_JSON[is_directory]},"isFile":{_JSON[is_file]}}}'
            for name, is_directory, is_file in found[start : start + _ENTRIES_AT_ONCE]
        ]
        yield opening + ",".join(entries).encode()
        opening = b","
    yield b"]}" if found else opening + b"]}"


def _remove(request: FileRequest) -> Iterator[bytes]:
    from execserver.files.remove import remove

    remove(_native(request), request.recursive is not False, request.force is not False)
    yield _EMPTY


def _copy(request: FileRequest) -> Iterator[bytes]:
    from execserver.files.copy import copy

    source = _native(request, request.destination)
    copy(source, request.destination.native(), request.recursive is True)
    yield _EMPTY


_OPERATIONS: dict[str, Callable[[FileRequest], Iterator[bytes]]] = {
    "fs/readFile": _read_file,
    "fs/writeFile": _write_file,
    "fs/createDirectory": _create_directory,
    "fs/getMetadata": _get_metadata,
    "fs/canonicalize": _canonicalize,
    "fs/readDirectory": _read_directory,
    "fs/remove": _remove,
    "fs/copy": _copy,
}
