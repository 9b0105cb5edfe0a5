"""The records between server and file worker: bytes to values and back, no I/O.

A request names an operation, its flags and one or two paths; a walk also has limits.  A reply says that the
operation is done, or carries its result.  Where a reply opens something, the datagram carries the descriptor:
the content of files never travels here.  Every record has its kind in the first byte and the number of its
request at offset 8, where the channel looks for it.  Anything malformed raises RecordError.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# The operation of a request.
READ = 1  # open a regular file for reading
REPLACE = 2  # create or empty a regular file for writing
WRITE = 3  # open for writing, without emptying
CREATE_DIRECTORY = 4
GET_METADATA = 5
CANONICALIZE = 6
READ_DIRECTORY = 7
REMOVE = 8
COPY = 9
WALK = 10
RENAME = 11  # with FORCE also over what is there
CHMOD = 12  # the mode is the first limit
TOUCH = 13  # the second path is /ACCESS/MODIFICATION, times in nanoseconds
LOOK = 14  # replies with a path: /MODE/MODIFICATION/SIZE/ and the target of a symlink
SYMLINK = 15  # the second path is `/` and what the symlink holds
OPEN_FOLDER = 16  # open a directory for listing, without symlinks in its path
_WITH_TARGET = (COPY, RENAME, TOUCH, SYMLINK)
_OPERATIONS = range(READ, OPEN_FOLDER + 1)

# Flags of a request.
RECURSIVE = 1
FORCE = 2
FOLLOW_LINKS = 4
PRUNE_HIDDEN = 8
NO_SYMLINKS = 16  # no symlink in the path
LIST_LINKS = 32
_FLAGS = RECURSIVE | FORCE | FOLLOW_LINKS | PRUNE_HIDDEN | NO_SYMLINKS | LIST_LINKS

# Who refused a path: the kernel, or the path guard for one of these reasons.
BY_KERNEL = 0
BY_PROCFS = 1  # it belongs to a process
BY_MISSING = 2  # it is, or is below, a protected path that did not exist when the plan was made
BY_PATTERN = 3  # a deny pattern matches it
_REASONS = range(BY_KERNEL, BY_PATTERN + 1)

_DONE, _OPENED, _METADATA, _PATH, _ENTRIES, _WALKED, _FAILED, _REFUSED, _PROGRESS = range(1, 10)

MAX_PATH_BYTES = 4095  # the kernel's limit without the NUL; nothing longer can be opened

_REQUEST = struct.Struct("<BBHIQ3I")  # kind, flags, length of the second path, of the first, id, limits
_REPLY = struct.Struct("<BBHIQQQ")  # kind, flags, detail, count, id, two numbers

_BORN = struct.Struct("<Q")  # behind the head of metadata

_IS_DIRECTORY = 1
_IS_FILE = 2
_IS_LINK = 4
_TRUNCATED = 1

Entry = tuple[str, bool, bool]  # name, is_directory, is_file


class RecordError(Exception):
    """The bytes are no record, or a value does not fit into one."""


class Request:
    """One operation.  `target` is the second path of some; `limits` are depth, directories, entries."""

    __slots__ = ("flags", "limits", "operation", "path", "request_id", "target")

    def __init__(
        self,
        request_id: int,
        operation: int,
        path: bytes,
        flags: int = 0,
        target: bytes = b"",
        limits: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        self.request_id = request_id
        self.operation = operation
        self.path = path
        self.flags = flags
        self.target = target
        self.limits = limits


class Done:
    """The operation succeeded and has no result; with `opened` the datagram carries one descriptor."""

    __slots__ = ("opened", "request_id")

    def __init__(self, request_id: int, opened: bool = False) -> None:
        self.request_id = request_id
        self.opened = opened


class Metadata:
    """is_directory, is_file, is_symlink, size, time of modification in ms; time of birth in ms, or 0."""

    __slots__ = ("born_ms", "request_id", "values")

    def __init__(self, request_id: int, values: tuple[bool, bool, bool, int, int], born_ms: int = 0) -> None:
        self.request_id = request_id
        self.values = values
        self.born_ms = born_ms


class Path:
    """A path without symlinks."""

    __slots__ = ("path", "request_id")

    def __init__(self, request_id: int, path: bytes) -> None:
        self.request_id = request_id
        self.path = path


class Entries:
    """The entries of a directory."""

    __slots__ = ("entries", "request_id")

    def __init__(self, request_id: int, entries: list[Entry]) -> None:
        self.request_id = request_id
        self.entries = entries


class Walked:
    """What a walk found: (URI, is_directory) entries, (URI, text) errors, and whether a limit ended it."""

    __slots__ = ("entries", "errors", "request_id", "truncated")

    def __init__(
        self,
        request_id: int,
        entries: list[tuple[str, bool]],
        errors: list[tuple[str, str]],
        truncated: bool,
    ) -> None:
        self.request_id = request_id
        self.entries = entries
        self.errors = errors
        self.truncated = truncated


class Failed:
    """An error number of the operating system.

    `path` is the path that it is about, without symlinks; empty if that is not certain.  `reason` is one of
    the BY_ constants.
    """

    __slots__ = ("errno", "path", "reason", "request_id")

    def __init__(self, request_id: int, errno: int, path: bytes = b"", reason: int = BY_KERNEL) -> None:
        self.request_id = request_id
        self.errno = errno
        self.path = path
        self.reason = reason


class Refused:
    """An error of the wire contract that has no error number of the operating system: its code and text."""

    __slots__ = ("code", "message", "request_id")

    def __init__(self, request_id: int, code: int, message: str) -> None:
        self.request_id = request_id
        self.code = code
        self.message = message


class Progress:
    """The operation is still running: a worker that is silent for long is killed."""

    __slots__ = ("request_id",)

    def __init__(self, request_id: int) -> None:
        self.request_id = request_id


Reply = Done | Metadata | Path | Entries | Walked | Failed | Refused | Progress


def encode_request(request: Request) -> bytes:
    """Return the bytes of a request.  Raises RecordError for a value that does not fit."""
    path, target = request.path, request.target
    if len(path) > MAX_PATH_BYTES or len(target) > MAX_PATH_BYTES or request.operation not in _OPERATIONS:
        raise RecordError("request with a path that is too long, or for an unknown operation")
    try:
        head = _REQUEST.pack(
            request.operation, request.flags, len(target), len(path), request.request_id, *request.limits
        )
    except struct.error as error:
        raise RecordError("a number of a request is out of range") from error
    return head + path + target


def decode_request(data: bytes) -> Request:
    """Return the request in some bytes.  Raises RecordError for anything else."""
    if len(data) < _REQUEST.size:
        raise RecordError(f"request of {len(data)} bytes is shorter than its head")
    operation, flags, target_bytes, path_bytes, number, *limits = _REQUEST.unpack_from(data)
    body = data[_REQUEST.size :]
    if operation not in _OPERATIONS or flags & ~_FLAGS or len(body) != path_bytes + target_bytes:
        raise RecordError("malformed request")
    path, target = body[:path_bytes], body[path_bytes:]
    if not path.startswith(b"/") or b"\0" in body or max(path_bytes, target_bytes) > MAX_PATH_BYTES:
        raise RecordError("request with a path that is none")
    if bool(target) != (operation in _WITH_TARGET) or (target and not target.startswith(b"/")):
        raise RecordError("a second path belongs to a copy, and to nothing else")
    return Request(number, operation, path, flags, target, (limits[0], limits[1], limits[2]))


def encode_reply(reply: Reply) -> bytes:
    """Return the bytes of a reply.  Raises RecordError for a value that does not fit."""
    try:
        return _encode_reply(reply)
    except struct.error as error:
        raise RecordError("a number of a reply is out of range") from error


def _encode_reply(reply: Reply) -> bytes:
    number = reply.request_id
    if isinstance(reply, Done):
        return _REPLY.pack(_OPENED if reply.opened else _DONE, 0, 0, 0, number, 0, 0)
    if isinstance(reply, Metadata):
        is_directory, is_file, is_link, size, modified_ms = reply.values
        flags = is_directory * _IS_DIRECTORY | is_file * _IS_FILE | is_link * _IS_LINK
        return _REPLY.pack(_METADATA, flags, 0, 0, number, size, modified_ms) + _BORN.pack(reply.born_ms)
    if isinstance(reply, Failed):
        return _REPLY.pack(_FAILED, reply.reason, 0, reply.errno, number, 0, 0) + reply.path
    if isinstance(reply, Path):
        return _REPLY.pack(_PATH, 0, 0, 0, number, 0, 0) + reply.path
    if isinstance(reply, Refused):
        text = reply.message.encode("utf-8", "surrogateescape")
        return _REPLY.pack(_REFUSED, 0, 0, -reply.code, number, 0, 0) + text
    if isinstance(reply, Entries):
        kinds = bytes([d * _IS_DIRECTORY | f * _IS_FILE for _, d, f in reply.entries])
        names = _join([name for name, _, _ in reply.entries])
        return _REPLY.pack(_ENTRIES, 0, 0, len(kinds), number, 0, 0) + kinds + names
    if isinstance(reply, Walked):
        return _encode_walked(reply)
    return _REPLY.pack(_PROGRESS, 0, 0, 0, number, 0, 0)


def _encode_walked(reply: Walked) -> bytes:
    kinds = bytes([is_directory for _, is_directory in reply.entries])
    texts = [uri for uri, _ in reply.entries]
    for error in reply.errors:
        texts += error
    flags = _TRUNCATED if reply.truncated else 0
    head = _REPLY.pack(_WALKED, flags, 0, len(kinds), reply.request_id, len(reply.errors), 0)
    return head + kinds + _join(texts)


def decode_reply(data: bytes) -> Reply:
    """Return the reply in some bytes.  Raises RecordError for anything else."""
    if len(data) < _REPLY.size:
        raise RecordError(f"reply of {len(data)} bytes is shorter than its head")
    kind, flags, detail, count, number, first, second = _REPLY.unpack_from(data)
    body = data[_REPLY.size :]
    if detail:
        raise RecordError("malformed head of a reply")
    try:
        if kind == _ENTRIES and not (flags or first or second):
            return _decode_entries(number, count, body)
        if kind == _WALKED and flags <= _TRUNCATED and not second:
            return _decode_walked(number, flags, count, first, body)
        if kind == _FAILED and flags in _REASONS and not (first or second):
            return Failed(number, count, body, flags)
        if kind == _REFUSED and not (flags or first or second):
            return Refused(number, -count, body.decode("utf-8", "surrogateescape"))
    except UnicodeDecodeError as error:
        raise RecordError("reply with a text that is none") from error
    return _decode_short(kind, flags, count, number, (first, second), body)


def _decode_short(
    kind: int, flags: int, count: int, number: int, numbers: tuple[int, int], body: bytes
) -> Reply:
    if kind == _PATH and body and not (flags or count or any(numbers)):
        return Path(number, body)
    is_metadata = kind == _METADATA and flags <= _IS_DIRECTORY | _IS_FILE | _IS_LINK
    if is_metadata and len(body) == _BORN.size and not count:
        values = (bool(flags & _IS_DIRECTORY), bool(flags & _IS_FILE), bool(flags & _IS_LINK))
        return Metadata(number, (*values, *numbers), _BORN.unpack(body)[0])
    if body or count:
        raise RecordError(f"reply of kind {kind} with bytes too many")
    if kind in (_DONE, _OPENED, _PROGRESS) and not (flags or any(numbers)):
        return Progress(number) if kind == _PROGRESS else Done(number, kind == _OPENED)
    raise RecordError(f"unknown kind {kind} of a reply")


def _decode_entries(number: int, count: int, body: bytes) -> Entries:
    names = _split(body[count:], count)
    kinds = body[:count].ljust(count)
    return Entries(
        number,
        [
            (name, bool(kind & _IS_DIRECTORY), bool(kind & _IS_FILE))
            for name, kind in zip(names, kinds, strict=True)
        ],
    )


def _decode_walked(number: int, flags: int, count: int, errors: int, body: bytes) -> Walked:
    texts = _split(body[count:], count + 2 * errors)
    entries = [(uri, bool(kind)) for uri, kind in zip(texts, body[:count], strict=False)]
    pairs = list(zip(texts[count::2], texts[count + 1 :: 2], strict=True))
    return Walked(number, entries, pairs, bool(flags & _TRUNCATED))


def _join(texts: Sequence[str]) -> bytes:
    """Join texts by NUL, which none of them can hold: they are file names and what is made of these."""
    joined = "\0".join(texts)
    if joined.count("\0") != max(len(texts) - 1, 0):
        raise RecordError("a text holds a NUL byte")
    return joined.encode("utf-8", "surrogateescape")


def _split(body: bytes, count: int) -> list[str]:
    texts = body.decode("utf-8", "surrogateescape").split("\0") if count else []
    if len(texts) != count or (not count and body):
        raise RecordError(f"reply announces {count} texts and holds {len(texts)}")
    return texts
