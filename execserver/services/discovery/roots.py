"""`capabilityRoots/discoverV1`: the files of plugins and skills in folders that the client names."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from execserver.protocol.discovery import (
    CapabilityFile,
    CapabilityRoot,
    CapabilityRootParams,
    CapabilityRootsDiscoverResponse,
    PluginFiles,
    SkillFiles,
    WireCapabilityRootsDiscoverParams,
)
from execserver.protocol.errors import InvalidRequest, RpcError
from execserver.protocol.paths import PathUri
from execserver.protocol.sandbox import FileSystemSandboxContext
from execserver.services.discovery.bundle import (
    MANIFESTS,
    MAX_BUNDLE_BYTES,
    METADATA,
    SKILL,
    Budget,
    Bundle,
    BundleFull,
)
from execserver.services.filesystem import FileService

if TYPE_CHECKING:
    from execserver.services.sandboxed_files import ConfinedFiles

MAX_ROOTS = 128
MAX_BYTES = 40 * 1024 * 1024  # of all folders of a request: more would not fit into a client's message

Operations = Callable[[FileSystemSandboxContext | None, PathUri], "FileService | ConfinedFiles"]


def discover(
    files: FileService, operations: Operations, params: WireCapabilityRootsDiscoverParams
) -> CapabilityRootsDiscoverResponse:
    """Search every folder with what its sandbox allows.  Raises InvalidRequest for too many."""
    if len(params.roots) > MAX_ROOTS:
        raise InvalidRequest(f"capability root discovery accepts at most {MAX_ROOTS} roots")
    total = Budget(MAX_BYTES)
    return CapabilityRootsDiscoverResponse(
        roots=tuple(_root(files, operations, root, total) for root in params.roots)
    )


def _root(
    files: FileService, operations: Operations, wanted: CapabilityRootParams, total: Budget
) -> CapabilityRoot:
    uri = wanted.path.uri
    doing = "inspect"
    try:
        bundle = Bundle(files, operations(wanted.sandbox, wanted.path), wanted.path.native(), total)
        if not bundle.is_directory():
            return _failed(wanted, f"capability root {uri} is not a directory")
        doing = "scan"
        bundle.scan()
    except RpcError as error:
        return _failed(wanted, f"failed to {doing} capability root {uri}: {error.message}")
    return _Contents(bundle).told(wanted)


def _failed(wanted: CapabilityRootParams, text: str) -> CapabilityRoot:
    return CapabilityRoot(id=wanted.id, path=wanted.path, error=text)


class _Contents:
    """What is read of one folder, as far as there is room for it."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._skills: list[SkillFiles] = []
        self._namespaces: list[CapabilityFile] = []
        self._plugin: PluginFiles | None = None
        try:
            self._read()
        except BundleFull:
            bundle.warnings.append(f"capability root bundle exceeds the {MAX_BUNDLE_BYTES}-byte limit")

    def told(self, wanted: CapabilityRootParams) -> CapabilityRoot:
        """Return the part of the answer."""
        return CapabilityRoot(
            id=wanted.id,
            path=wanted.path,
            plugin=self._plugin,
            skills=tuple(self._skills),
            namespace_manifests=tuple(self._namespaces),
            warnings=tuple(self._bundle.warnings),
        )

    def _read(self) -> None:
        bundle = self._bundle
        manifest = bundle.manifest(bundle.root)
        if manifest is not None:
            self._plugin = bundle.plugin(manifest)
        for path in bundle.named(SKILL):
            instructions = bundle.read(path)
            if instructions is not None:
                metadata = bundle.read_found(os.path.join(os.path.dirname(path), METADATA))
                self._skills.append(SkillFiles(instructions=instructions, metadata=metadata))
        nearest = manifest or self._above()
        if nearest is not None:
            self._namespaces.append(nearest)
        for folder in self._folders_with_manifest():
            found = bundle.manifest(folder)
            if found is not None:
                self._namespaces.append(found)

    def _above(self) -> CapabilityFile | None:
        """Return the manifest of the nearest folder upwards, from the root itself on."""
        folder = self._bundle.root
        while True:
            found = self._bundle.manifest(folder)
            if found is not None or folder == b"/":
                return found
            folder = os.path.dirname(folder)

    def _folders_with_manifest(self) -> list[bytes]:
        bundle = self._bundle
        folders = {
            path.removesuffix(b"/" + name)
            for name in MANIFESTS
            for path in bundle.paths
            if path.endswith(b"/" + name)
        }
        return sorted(folders - {bundle.root.rstrip(b"/")})
