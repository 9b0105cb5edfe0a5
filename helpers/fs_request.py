"""A request to the file helper: its operation and its params, checked without any library.

It accepts the params that the server accepts and refuses others with the same texts (wire contract, sections
5 and 12): members in the order in which they came, then the first missing one.  A positional array works,
too.
"""

from __future__ import annotations

from execserver.protocol.error_texts import missing_field, refuse, unknown_variant, wrong_type
from execserver.protocol.paths import PathUri

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from execserver.protocol.sandbox import FileSystemSandboxContext

    Reader = Callable[[object, str], object]
    Field = tuple[str, str, Reader, bool]
    # Levels, directories, entries; whether symlinks are followed, and hidden directories left out.
    WalkLimits = tuple[int, int, int, bool, bool]
    # A plugin: its id, its version, its id where it was installed from.
    Installed = tuple[str, str, str | None]
    # A place to load: where it is, the id under which its skills were looked for, the plugin that it is.
    Location = tuple[PathUri, str | None, Installed | None]
    # A folder to search: its name in the answer, where it is, and what may be read there.
    Root = tuple[str, PathUri, FileSystemSandboxContext | None]


class FileRequest:
    """One operation and its params; those that an operation does not have keep their defaults."""

    __slots__ = (
        *("content", "destination", "force", "links", "mode"),
        *("locations", "operation", "path", "recursive", "roots", "sandbox", "walk", "warnings"),
    )

    path: PathUri  # the source of a copy
    destination: PathUri  # of a copy only
    content: str  # base64, of a write only

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self.recursive: bool | None = None
        self.force: bool | None = None
        self.links: bool | None = None  # `followSymlinks`; False is the no-symlinks mode
        self.mode = READ  # of an opened file
        self.walk: WalkLimits = (0, 0, 0, False, False)
        self.sandbox: FileSystemSandboxContext | None = None
        self.roots: tuple[Root, ...] = ()  # of a search for capabilities only
        self.locations: tuple[Location, ...] = ()  # of loading capabilities only, as the next
        self.warnings: tuple[str, ...] = ()


def read_request(value: object) -> FileRequest:
    """Return the request that a decoded JSON value stands for.  Raises InvalidParams."""
    if not isinstance(value, dict):
        raise wrong_type(value, "adjacently tagged enum FsHelperRequest")
    operation = value.get("operation")
    if "operation" not in value:
        raise missing_field("operation")
    if not isinstance(operation, str):
        raise wrong_type(operation, "a string", "operation")
    if operation not in _PARAMS:
        raise unknown_variant(operation, tuple(_PARAMS))
    if "params" not in value:
        raise missing_field("params")
    return read_params(operation, value["params"])


def read_params(operation: str, params: object) -> FileRequest:
    """Return the request for one of `OPERATIONS` and its decoded params.  Raises InvalidParams."""
    kind, fields = _PARAMS[operation]
    request = FileRequest(operation)
    if isinstance(params, dict):
        _take(request, params.items(), (*fields, _LINKS) if operation in _KNOW_LINKS else fields)
        for name, _, _, required in fields:
            if required and name not in params:
                raise missing_field(name)
    elif isinstance(params, list) and operation != LOAD:
        _take(request, zip([field[0] for field in fields], params, strict=False), fields)
        _check_length(len(params), fields, kind)
    else:
        raise wrong_type(params, f"struct {'variant ' if operation == LOAD else ''}{kind}")
    return request


def _take(request: FileRequest, members: Iterable[tuple[str, object]], fields: tuple[Field, ...]) -> None:
    """Check the members that an operation has, in the order in which they came, and keep them."""
    known = {name: (attribute, read) for name, attribute, read, _ in fields}
    for name, value in members:
        if name in known:
            attribute, read = known[name]
            setattr(request, attribute, read(value, name))


def _check_length(
    length: int, fields: tuple[Field, ...], kind: str, where: str = "", least: int | None = None
) -> None:
    # Of the optional members only the last one can be left out of an array, but for operations that newer
    # versions added.
    if least is None:
        least = 1 if kind in (_OPEN, _DISCOVER) else len(fields) - 1
    if length < least:
        elements = "1 element" if len(fields) == 1 else f"{len(fields)} elements"
        raise refuse(f"invalid length {length}, expected struct {kind} with {elements}", where)
    if length > len(fields):
        raise refuse(f"invalid length {length}, expected fewer elements in array", where)


def _path(value: object, where: str) -> PathUri:
    return PathUri.parse(_text(value, where))


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise wrong_type(value, "a string", where)
    return value


def _flag(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise wrong_type(value, "a boolean", where)
    return value


def _optional_flag(value: object, where: str) -> bool | None:
    return None if value is None else _flag(value, where)


def _sandbox(value: object, where: str) -> FileSystemSandboxContext | None:
    if value is None:
        return None
    from execserver.protocol.sandbox import FileSystemSandboxContext  # loaded here: most callers send null

    return FileSystemSandboxContext.from_json(value, where)


def _mode(value: object, where: str) -> str:
    text = _text(value, where)
    if text not in _MODES:
        raise unknown_variant(text, _MODES)
    return text


def _size(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise wrong_type(value, "usize", where)
    if isinstance(value, float) or not 0 <= value < 1 << 64:
        raise refuse("invalid number", where)
    return value


def _walk_limits(value: object, where: str) -> WalkLimits:
    """Return the options of a walk, in the order in which they are declared."""
    if isinstance(value, list):
        members: Iterable[tuple[str, object]] = zip([field[0] for field in _WALK], value, strict=False)
    elif isinstance(value, dict):
        members = value.items()
    else:
        raise wrong_type(value, "struct FsWalkOptions", where)
    readers = {name: read for name, _, read, _ in _WALK}
    found: dict[str, object] = {"pruneHiddenDirectories": False}
    found.update(
        {name: readers[name](member, f"{where}.{name}") for name, member in members if name in readers}
    )
    if isinstance(value, list):
        _check_length(len(value), _WALK, "FsWalkOptions", where)
    for name, *_ in _WALK:
        if name not in found:
            raise missing_field(name)
    return tuple(found[name] for name, *_ in _WALK)  # type: ignore[return-value]


def _roots(value: object, where: str) -> tuple[Root, ...]:
    if not isinstance(value, list):
        raise wrong_type(value, "a sequence", where)
    return tuple(_root(member, f"{where}[{number}]") for number, member in enumerate(value))


def _root(value: object, where: str) -> Root:
    """Return one folder to search."""
    return _structure(value, where, _ROOT_KIND, _ROOT, len(_ROOT) - 1)  # type: ignore[return-value]


def _locations(value: object, where: str) -> tuple[Location, ...]:
    if not isinstance(value, list):
        raise wrong_type(value, "a sequence", where)
    return tuple(
        _structure(member, f"{where}[{number}]", "CapabilityLocation", _LOCATION)  # type: ignore[misc]
        for number, member in enumerate(value)
    )


def _plugin(value: object, where: str) -> object:
    return None if value is None else _structure(value, where, "InstalledPlugin", _PLUGIN)


def _texts(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise wrong_type(value, "a sequence", where)
    return tuple(_text(member, f"{where}[{number}]") for number, member in enumerate(value))


def _optional_text(value: object, where: str) -> str | None:
    return None if value is None else _text(value, where)


def _structure(
    value: object, where: str, kind: str, fields: tuple[Field, ...], least: int | None = None
) -> tuple[object, ...]:
    """Return the members of a record, in the order of `fields`; an array needs `least` of them, else all."""
    names = [field[0] for field in fields]
    if isinstance(value, list):
        members: Iterable[tuple[str, object]] = zip(names, value, strict=False)
    elif isinstance(value, dict):
        members = value.items()
    else:
        raise wrong_type(value, f"struct {kind}", where)
    readers = {name: read for name, _, read, _ in fields}
    found = {name: readers[name](member, f"{where}.{name}") for name, member in members if name in readers}
    if isinstance(value, list):
        _check_length(len(value), fields, kind, where, least or len(fields))
    for name, _, _, required in fields:
        if required and name not in found:
            raise missing_field(name)
    return tuple(map(found.get, names))


READ, REPLACE = "read", "replace"
LOAD = "capabilities/loadDiscoveries"  # params by name only
_OPEN = "FsHelperOpenParams"
_DISCOVER = "CapabilityRootsDiscoverParams"
_MODES = (READ, REPLACE)
_WALK: tuple[Field, ...] = (
    ("maxDepth", "", _size, True),
    ("maxDirectories", "", _size, True),
    ("maxEntries", "", _size, True),
    ("followDirectorySymlinks", "", _flag, True),
    ("pruneHiddenDirectories", "", _flag, False),
)
_PATH: Field = ("path", "path", _path, True)
_SANDBOX: Field = ("sandbox", "sandbox", _sandbox, False)
_RECURSIVE: Field = ("recursive", "recursive", _optional_flag, False)

_ROOT: tuple[Field, ...] = (
    ("id", "", _text, True),
    ("path", "", _path, True),
    ("sandbox", "", _sandbox, False),
)
_ROOT_KIND = "CapabilityRootDiscoverRequest"

_LOCATION: tuple[Field, ...] = (
    ("root", "", _path, True),
    ("standalone_root_id", "", _optional_text, False),
    ("plugin", "", _plugin, False),
)
_PLUGIN: tuple[Field, ...] = (
    ("id", "", _text, True),
    ("version", "", _text, True),
    ("remote_plugin_id", "", _optional_text, False),
)

# Operation -> what its params are called in error texts, and their members in declaration order: name,
# attribute, reader, whether it must be there.
_PARAMS: dict[str, tuple[str, tuple[Field, ...]]] = {
    LOAD: (
        "FsHelperRequest::LoadCapabilityDiscoveries",
        (("locations", "locations", _locations, True), ("warnings", "warnings", _texts, True)),
    ),
    "capabilityRoots/discoverV1": (_DISCOVER, (("roots", "roots", _roots, True),)),
    "fs/open": (_OPEN, (_PATH, ("mode", "mode", _mode, False), _SANDBOX)),
    "fs/readFile": ("FsReadFileParams", (_PATH, _SANDBOX)),
    "fs/writeFile": ("FsWriteFileParams", (_PATH, ("dataBase64", "content", _text, True), _SANDBOX)),
    "fs/createDirectory": ("FsCreateDirectoryParams", (_PATH, _RECURSIVE, _SANDBOX)),
    "fs/getMetadata": ("FsGetMetadataParams", (_PATH, _SANDBOX)),
    "fs/canonicalize": ("FsCanonicalizeParams", (_PATH, _SANDBOX)),
    "fs/readDirectory": ("FsReadDirectoryParams", (_PATH, _SANDBOX)),
    "fs/walk": ("FsWalkParams", (_PATH, ("options", "walk", _walk_limits, True), _SANDBOX)),
    "fs/remove": ("FsRemoveParams", (_PATH, _RECURSIVE, ("force", "force", _optional_flag, False), _SANDBOX)),
    "fs/copy": (
        "FsCopyParams",
        (
            ("sourcePath", "path", _path, True),
            ("destinationPath", "destination", _path, True),
            ("recursive", "recursive", _flag, True),
            _SANDBOX,
        ),
    ),
}
OPERATIONS = tuple(_PARAMS)
# A member of version 0.169.0.  It works by name only, since its position in an array is not known.
_LINKS: Field = ("followSymlinks", "links", _optional_flag, False)
_KNOW_LINKS = frozenset(("fs/readFile", "fs/writeFile", "fs/createDirectory", "fs/getMetadata", "fs/remove"))
