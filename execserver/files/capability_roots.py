"""`capabilityRoots/discoverV1`: the files of plugins and skills in one of the folders that a caller names.

Nothing is parsed but the manifest of the folder itself, for the files that it names.
"""

from __future__ import annotations

import os

from execserver.files.capability_bundle import MAX_BUNDLE_BYTES, METADATA, SKILL, Bundle, BundleFull
from execserver.files.yielding import no_pause
from execserver.protocol.errors import InvalidRequest, RpcError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from execserver.files.capability_bundle import Budget, Plugin, Reading, TextFile
    from execserver.files.yielding import Pause
    from execserver.protocol.paths import PathUri

MAX_ROOTS = 128
MAX_BYTES = 40 * 1024 * 1024  # of all folders of a request: more would not fit into a client's message


def check_count(roots: int) -> None:
    """Raise InvalidRequest for more folders than a request may name."""
    if roots > MAX_ROOTS:
        raise InvalidRequest(f"capability root discovery accepts at most {MAX_ROOTS} roots")


class Root:
    """What one folder holds; with `error` nothing.  `skills` are SKILL.md and the metadata beside it."""

    def __init__(self, error: str | None = None) -> None:
        self.error = error
        self.plugin: Plugin | None = None
        self.skills: list[tuple[TextFile, TextFile | None]] = []
        self.namespace_manifests: list[TextFile] = []
        self.warnings: list[str] = []


def search(reading: Callable[[], Reading], path: PathUri, total: Budget, pause: Pause = no_pause) -> Root:
    """Search a folder; `reading` may refuse it with an RpcError, which becomes its error."""
    doing = "inspect"
    try:
        bundle = Bundle(reading(), path.native(), total, pause)
        if not bundle.is_directory():
            return Root(f"capability root {path.uri} is not a directory")
        doing = "scan"
        bundle.scan()
    except RpcError as error:
        return Root(f"failed to {doing} capability root {path.uri}: {error.message}")
    found = Root()
    found.warnings = bundle.warnings
    try:
        _read(bundle, found)
    except BundleFull:
        bundle.warnings.append(f"capability root bundle exceeds the {MAX_BUNDLE_BYTES}-byte limit")
    return found


def _read(bundle: Bundle, found: Root) -> None:
    """Read the files, as far as there is room for them.  Raises BundleFull."""
    manifest = bundle.manifest(bundle.root)
    if manifest is not None:
        found.plugin = bundle.plugin(manifest)
    for path in bundle.named(SKILL):
        instructions = bundle.read(path)
        if instructions is not None:
            metadata = bundle.read_found(os.path.join(os.path.dirname(path), METADATA))
            found.skills.append((instructions, metadata))
    found.namespace_manifests = bundle.namespace_manifests(manifest)
