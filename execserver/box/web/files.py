"""Files of a box for a page: listed, read and written as text, made, removed, renamed.

A page never gets more than 1 MiB of a file or 5,000 names of a folder in one answer; downloads and uploads of
any size are `transfers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gevent.pool import Pool

from execserver.box.commands.running import home_of
from execserver.box.web.failing import CHANGED, NOT_FOUND, WRONG, CallFailed, of_client
from execserver.box.web.paths import is_name, text_of, uri_of
from execserver.client.errors import ExecServerError
from execserver.client.operations.content import BLOCK_BYTES
from execserver.eventloop.deadline import at_most
from execserver.protocol.errors import RpcError
from execserver.protocol.files import FileVersion, FsReadDirectoryEntry, FsWalkOptions
from execserver.protocol.paths import PathUri

if TYPE_CHECKING:
    from execserver.box.web.link import Link
    from execserver.box.web.reading import Params
    from execserver.client.client import ExecServerClient

MAX_TEXT: Final = BLOCK_BYTES
_MOST_ENTRIES: Final = 5000
_MOST_LOOKED_AT: Final = 2000
_LOOK_S: Final = 2.0  # for all of these, so that a folder behind a slow connection is shown soon
_AT_ONCE: Final = 32
_REPLACED: Final = "\ufffd"  # stands for bytes of a name that are no UTF-8
_FLAT: Final = FsWalkOptions(
    max_depth=0, max_directories=1, max_entries=_MOST_ENTRIES, follow_directory_symlinks=False
)

_Entry = tuple[str, str]  # name and kind


def listed(link: Link, params: Params) -> dict[str, object]:
    """Return what is in a folder, folders first."""
    given = params.maybe_path("path")
    with link.using() as client:
        path = home_of(client, link.box) if given is None else uri_of(given)
        found = _entries(client, path)
        shown = found[:_MOST_ENTRIES]
        entries = _looked_at(client, path, shown[:_MOST_LOOKED_AT])
        entries += [_members(each) for each in shown[len(entries) :]]
        return {"path": text_of(path), "entries": entries, "truncated": len(found) > len(shown)}


def _looked_at(client: ExecServerClient, path: PathUri, entries: list[_Entry]) -> list[dict[str, object]]:
    """Return entries with what is known of each, as many as are looked at in time."""
    found: list[dict[str, object]] = []
    pool = Pool(_AT_ONCE)
    try:
        with at_most(_LOOK_S):
            for each in pool.imap(lambda entry: _described(client, path, entry), entries, maxsize=_AT_ONCE):
                found.append(each)  # noqa: PERF402 - those that were found count also when time is over
    finally:
        pool.kill()
    return found


def _entries(client: ExecServerClient, path: PathUri) -> list[_Entry]:
    plain = [(each.file_name, _kind(each)) for each in client.read_directory(path) if is_name(each.file_name)]
    if any(_REPLACED in name for name, _ in plain):
        plain = [each for each in plain if _REPLACED not in each[0]] + _exact(client, path)
    return sorted(plain, key=lambda each: (each[1] != "directory", each[0].lower(), each[0]))


def _kind(entry: FsReadDirectoryEntry) -> str:
    return "directory" if entry.is_directory else "file" if entry.is_file else "other"


def _exact(client: ExecServerClient, path: PathUri) -> list[_Entry]:
    """Return the entries that have bytes in their names which are no UTF-8, or that very character."""
    found = []
    for entry in client.walk(path, _FLAT).entries:
        try:
            raw = entry.path.native().rpartition(b"/")[2]
        except RpcError:
            continue
        name = raw.decode("utf-8", "surrogateescape")
        if is_name(name) and _REPLACED in raw.decode("utf-8", "replace"):
            found.append((name, entry.kind.value))
    return found


def _described(client: ExecServerClient, folder: PathUri, entry: _Entry) -> dict[str, object]:
    name, kind = entry
    members = _members(entry)
    try:
        path = uri_of(f"{text_of(folder).rstrip('/')}/{name}")
        if kind == "file" and client.extensions.fs_change:
            seen = client.files.stat(path)
            return members | {
                "size": seen.version.size,
                "mtime_ms": seen.version.modified_at_ns // 1_000_000,
                "mode": seen.mode,
            }
        found = client.get_metadata(path)
        return members | {
            "size": found.size if kind == "file" else None,
            "mtime_ms": found.modified_at_ms,
        }
    except (ExecServerError, CallFailed):
        return members  # it has gone meanwhile, or nobody may look at it


def _members(entry: _Entry) -> dict[str, object]:
    return {"name": entry[0], "kind": entry[1], "size": None, "mtime_ms": None, "mode": None}


def read(link: Link, params: Params) -> dict[str, object]:
    """Return the text of a file and its version."""
    path = uri_of(params.path("path"))
    with link.using() as client:
        version = _version(client, path)
        with client.open_file(path) as file:
            data = file.read_block(0, MAX_TEXT)
            more = file.read_block(len(data), 1) if len(data) == MAX_TEXT else b""
        text = _text(data, is_cut=bool(more))
        return {
            "text": text,
            "version": _json_version(version),
            "truncated": bool(more),
            "size": len(data) if version is None else version.size,
        }


def _text(data: bytes, *, is_cut: bool) -> str | None:
    if b"\0" in data:
        return None
    for missing in range(4 if is_cut else 1):  # a character may be cut in the middle
        try:
            return data[: len(data) - missing].decode()
        except UnicodeDecodeError:
            continue
    return None


def write(link: Link, params: Params) -> dict[str, object]:
    """Write a text as a whole or not at all, if the file is still the version that the page has."""
    path = uri_of(params.path("path"))
    text = params.text("text", MAX_TEXT)
    data = text.encode()
    if len(data) > MAX_TEXT:
        raise CallFailed("a text has 1 MiB at most; upload a larger file", WRONG)
    with link.using() as client:
        if not client.extensions.fs_change:
            raise CallFailed("this server writes no file as a whole", "unsupported", "use a newer execserver")
        path = target_of(client, path)
        try:
            client.files.replace_file(
                path,
                data,
                mode=_mode(client, path),
                if_unchanged_since=_wanted_version(params),
                must_not_exist=params.has("version") and params.value("version") is None,
            )
        except ExecServerError as error:
            failed = of_client(error, link.box)
            if failed.code == NOT_FOUND and params.value("version") is not None:
                failed.code = CHANGED  # it is gone
            raise failed from None
        return {"version": _json_version(_version(client, path))}


def target_of(client: ExecServerClient, path: PathUri) -> PathUri:
    """Return where a file that is to be replaced is: a link stays, what it leads to changes."""
    try:
        return client.canonicalize(path)
    except ExecServerError:
        return path  # nothing is there


def _mode(client: ExecServerClient, path: PathUri) -> int | None:
    try:
        return client.files.stat(path).mode
    except ExecServerError:
        return None


def _version(client: ExecServerClient, path: PathUri) -> FileVersion | None:
    return client.files.stat(path).version if client.extensions.fs_change else None


def _json_version(version: FileVersion | None) -> str | None:
    # Nanoseconds do not fit the numbers of a page.
    return None if version is None else f"{version.modified_at_ns}-{version.size}"


def _wanted_version(params: Params) -> FileVersion | None:
    text = params.maybe_text("version", 64)
    if text is None:
        return None
    modified, _, size = text.rpartition("-")
    try:
        return FileVersion(modified_at_ns=int(modified), size=int(size))
    except ValueError:
        raise CallFailed("version is none of files.read", WRONG) from None


def mkdir(link: Link, params: Params) -> dict[str, object]:
    """Make a folder; one that is there is a mistake."""
    path = uri_of(params.path("path"))
    with link.using() as client:
        client.create_directory(path, recursive=False)
    return {}


def remove(link: Link, params: Params) -> dict[str, object]:
    """Remove a file, a link, or with `recursive` a tree."""
    path = uri_of(params.path("path"))
    if path.native().strip(b"/.") == b"":
        raise CallFailed("the root is not removed", WRONG)
    with link.using() as client:
        client.remove(path, recursive=params.flag("recursive"), force=False)
    return {}


def rename(link: Link, params: Params) -> dict[str, object]:
    """Give something another name that is not taken."""
    source, target = uri_of(params.path("from")), uri_of(params.path("to"))
    with link.using() as client:
        if not client.extensions.fs_change:
            raise CallFailed("this server renames nothing", "unsupported", "use a newer execserver")
        client.files.rename(source, target, replace=False)
    return {}
