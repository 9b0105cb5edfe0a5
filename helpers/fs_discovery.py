"""`capabilityRoots/discoverV1` and `capabilities/loadDiscoveries` for the file helper, answered in JSON.

The server's searches (`execserver.files.capability_roots`, `capability_loading`) do the work.  The process
can be in one sandbox root only: where a folder's sandbox restricts files, all folders of the request must
have that same sandbox.  Places to load have no sandbox.
"""

from __future__ import annotations

from execserver.files import capability_roots
from execserver.files.capability_bundle import Budget
from execserver.files.reading import FileReader
from execserver.files.yielding import no_pause
from execserver.protocol.errors import InvalidRequest
from execserver.protocol.json_text import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from execserver.files.capability_bundle import Plugin, TextFile
    from execserver.files.walk import Walk, WalkOptions
    from execserver.protocol.sandbox import FileSystemSandboxContext
    from execserver.sandbox.files.operations import GuardedFiles

    from .fs_operations import PlainFiles
    from .fs_request import Location, Root

_NULL = "null"


class FolderFiles:
    """Looks at folders with the operations of this process, behind the path guard or without it."""

    def __init__(self, files: PlainFiles | GuardedFiles) -> None:
        self._files = files

    def is_directory(self, path: bytes) -> bool:
        """Return whether a path leads to a directory."""
        return self._files.get_metadata(path)[0]

    def walk(self, root: bytes, options: WalkOptions) -> Walk:
        """List what is below a directory."""
        return self._files.walk(root, options)

    def read(self, path: bytes, limit: int) -> bytes:
        """Return the content of a regular file; raise FileTooLarge above `limit` bytes."""
        return b"".join(FileReader(self._files.open_regular(path), limit).pieces())


def restricting_sandbox(roots: tuple[Root, ...]) -> FileSystemSandboxContext | None:
    """Return the sandbox that the folders are searched in, None if none of them restricts files.

    Raises InvalidRequest for too many folders, for a sandbox that cannot be made, and where the folders do
    not have the same one.
    """
    capability_roots.check_count(len(roots))
    sandboxes = {sandbox for _, _, sandbox in roots}
    if sandboxes <= {None}:
        return None
    from execserver.sandbox.policy.request_check import file_request_needs_sandbox

    restricting = [sandbox for sandbox in sandboxes if file_request_needs_sandbox(sandbox)]
    if restricting and len(sandboxes) > 1:
        raise InvalidRequest(
            "the file helper searches all roots in one sandbox: name the same for each, or make one request"
            " for each"
        )
    return restricting[0] if restricting else None


def answer(roots: tuple[Root, ...], files: PlainFiles | GuardedFiles) -> Iterator[bytes]:
    """Search the folders and yield the response, a piece for each."""
    reading, total = FolderFiles(files), Budget(capability_roots.MAX_BYTES)
    opening = '{"roots":['
    for identity, path, _ in roots:
        found = capability_roots.search(lambda: reading, path, total)
        yield f'{opening}{{"id":{quote(identity)},"path":{quote(path.uri)},{_contents(found)}}}'.encode()
        opening = ","
    yield b"]}" if roots else f"{opening}]}}".encode()


def load(locations: tuple[Location, ...], warnings: tuple[str, ...], files: PlainFiles) -> bytes:
    """Return the response about the plugins and skills at some places; the caller's warnings come first."""
    from execserver.files.capability_loading import Loading

    loading = Loading(FolderFiles(files), lambda describe: describe(no_pause), warnings=warnings)
    for location in locations:
        loading.add(location)
    return loading.text().encode()


def _contents(found: capability_roots.Root) -> str:
    skills = (
        f'{{"instructions":{_file(instructions)},"metadata":{_file(metadata)}}}'
        for instructions, metadata in found.skills
    )
    error = _NULL if found.error is None else quote(found.error)
    return (
        f'"plugin":{_plugin(found.plugin)},"skills":{_array(skills)},'
        f'"namespaceManifests":{_array(map(_file, found.namespace_manifests))},'
        f'"warnings":{_array(map(quote, found.warnings))},"error":{error}'
    )


def _plugin(plugin: Plugin | None) -> str:
    if plugin is None:
        return _NULL
    return (
        f'{{"manifest":{_file(plugin.manifest)},"mcpConfig":{_file(plugin.mcp_config)},'
        f'"appsConfig":{_file(plugin.apps_config)}}}'
    )


def _file(file: TextFile | None) -> str:
    if file is None:
        return _NULL
    return f'{{"path":{quote(file.path.uri)},"contents":{quote(file.contents)}}}'


def _array(texts: Iterable[str]) -> str:
    return f"[{','.join(texts)}]"
