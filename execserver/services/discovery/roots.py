"""`capabilityRoots/discoverV1`: the files of plugins and skills in folders that the client names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from execserver.files import capability_roots
from execserver.files.capability_bundle import Budget
from execserver.protocol.discovery import (
    CapabilityRoot,
    CapabilityRootParams,
    CapabilityRootsDiscoverResponse,
    SkillFiles,
    WireCapabilityRootsDiscoverParams,
)
from execserver.protocol.paths import PathUri
from execserver.protocol.sandbox import FileSystemSandboxContext
from execserver.services.discovery.folders import (
    Folders,
    file_record,
    let_others_run,
    optional_record,
    plugin_record,
)
from execserver.services.files.filesystem import FileService

if TYPE_CHECKING:
    from execserver.services.files.sandboxed import ConfinedFiles

Operations = Callable[[FileSystemSandboxContext | None, PathUri], "FileService | ConfinedFiles"]


def discover(
    files: FileService, operations: Operations, params: WireCapabilityRootsDiscoverParams
) -> CapabilityRootsDiscoverResponse:
    """Search every folder with what its sandbox allows.  Raises InvalidRequest for too many."""
    capability_roots.check_count(len(params.roots))
    total = Budget(capability_roots.MAX_BYTES)
    return CapabilityRootsDiscoverResponse(
        roots=tuple(_root(files, operations, root, total) for root in params.roots)
    )


def _root(
    files: FileService, operations: Operations, wanted: CapabilityRootParams, total: Budget
) -> CapabilityRoot:
    def within() -> Folders:
        return Folders(files, operations(wanted.sandbox, wanted.path))

    found = capability_roots.search(within, wanted.path, total, let_others_run)
    return CapabilityRoot(
        id=wanted.id,
        path=wanted.path,
        plugin=None if found.plugin is None else plugin_record(found.plugin),
        skills=tuple(
            SkillFiles(instructions=file_record(instructions), metadata=optional_record(metadata))
            for instructions, metadata in found.skills
        ),
        namespace_manifests=tuple(map(file_record, found.namespace_manifests)),
        warnings=tuple(found.warnings),
        error=found.error,
    )
