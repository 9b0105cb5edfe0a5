"""Finds and reads the files of one folder, within limits: for `capabilityRoots/discoverV1` and `discoverV2`.

A walk goes six levels deep and follows symlinks to directories.  What cannot be read because of a sandbox
does not exist.  A file has at most 1 MiB, all files of a folder 16 MiB; each one left out is a warning.
Who asks says how files are looked at (`Reading`): the server, or the file helper in a sandbox root.
"""

from __future__ import annotations

import os

from execserver.files.reading import FileTooLarge
from execserver.files.walk import WalkOptions
from execserver.files.yielding import no_pause
from execserver.protocol.error_texts import utf8_fault
from execserver.protocol.errors import RpcError, from_os_error
from execserver.protocol.json_text import parse_object
from execserver.protocol.paths import PathUri

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from execserver.files.walk import Walk
    from execserver.files.yielding import Pause

    class Reading(Protocol):
        """How a folder is looked at.  Each raises OSError or RpcError."""

        def is_directory(self, path: bytes) -> bool:
            """Return whether a path leads to a directory."""

        def walk(self, root: bytes, options: WalkOptions) -> Walk:
            """List what is below a directory."""

        def read(self, path: bytes, limit: int) -> bytes:
            """Return the content of a regular file; raise FileTooLarge above `limit` bytes."""


MAX_FILE_BYTES = 1024 * 1024
MAX_BUNDLE_BYTES = 16 * 1024 * 1024
MAX_DEPTH, MAX_DIRECTORIES, MAX_ENTRIES = 6, 2000, 20_000

MANIFESTS = tuple(
    os.path.join(folder, b"plugin.json")
    for folder in (b".codex-plugin", b".claude-plugin", b".cursor-plugin")
)
SKILL = b"SKILL.md"
METADATA = os.path.join(b"agents", b"openai.yaml")


class BundleFull(Exception):
    """The files of the folder, or of all folders of the request, have more bytes than are sent."""


class Budget:
    """How many bytes may still be read."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, size: int) -> None:
        """Use some, or raise BundleFull."""
        if size > self.left:
            raise BundleFull
        self.left -= size


class TextFile:
    """A file with its text."""

    __slots__ = ("contents", "path")

    def __init__(self, path: PathUri, contents: str) -> None:
        self.path = path
        self.contents = contents


class Plugin:
    """The files of a plugin: its manifest and what that names."""

    __slots__ = ("apps_config", "manifest", "mcp_config")

    def __init__(self, manifest: TextFile, mcp_config: TextFile | None, apps_config: TextFile | None) -> None:
        self.manifest = manifest
        self.mcp_config = mcp_config
        self.apps_config = apps_config


class Bundle:
    """One folder: what is in it, and its files as they are read."""

    def __init__(self, reading: Reading, root: bytes, total: Budget, pause: Pause = no_pause) -> None:
        self._reading = reading
        self._own = Budget(MAX_BUNDLE_BYTES)
        self._total = total
        self._pause = pause
        self.root = root
        self.warnings: list[str] = []
        self.misses_files = False  # that its manifest names
        self.paths: set[bytes] = set()

    def is_directory(self) -> bool:
        """Return whether the folder is one.  Raises RpcError if it is missing."""
        try:
            return self._reading.is_directory(self.root)
        except OSError as error:
            raise from_os_error(error) from None

    def scan(self) -> None:
        """Find the files.  Raises RpcError."""
        options = WalkOptions(MAX_DEPTH, MAX_DIRECTORIES, MAX_ENTRIES, follow_links=True, prune_hidden=False)
        try:
            found = self._reading.walk(self.root, options)
        except OSError as error:
            raise from_os_error(error) from None
        self.paths = {PathUri.parse(uri).native() for uri, is_directory in found.entries if not is_directory}
        if found.truncated:
            uri = PathUri.from_native(self.root).uri
            self.warnings.append(f"capability scan reached its traversal limit (root: {uri})")

    def named(self, name: bytes) -> list[bytes]:
        """Return the files that were found with this name, by path."""
        return sorted(path for path in self.paths if os.path.basename(path) == name)

    def read(self, path: bytes) -> TextFile | None:
        """Return a file, None if there is none to read.  Raises BundleFull."""
        self._pause()
        uri = PathUri.from_native(path)
        try:
            content = self._reading.read(path, MAX_FILE_BYTES)
            self._own.take(len(content))
            self._total.take(len(content))
            return TextFile(uri, content.decode())
        except FileTooLarge:
            text = f"capability file {uri.uri} exceeds the {MAX_FILE_BYTES}-byte limit"
        except UnicodeDecodeError as error:
            text = f"capability file {uri.uri} is not UTF-8: {utf8_fault(error)}"
        except (OSError, RpcError):
            return None
        self.warnings.append(text)
        return None

    def read_found(self, path: bytes) -> TextFile | None:
        """Return a file that the scan has found, else None.  Raises BundleFull."""
        return self.read(path) if path in self.paths else None

    def manifest(self, folder: bytes) -> TextFile | None:
        """Return the manifest of a folder, found by the scan unless it is above.  Raises BundleFull."""
        for name in MANIFESTS:
            path = os.path.join(folder, name)
            found = self.read_found(path) if _is_below(path, self.root) else self.read(path)
            if found is not None:
                return found
        return None

    def namespace_manifests(self, own: TextFile | None) -> list[TextFile]:
        """Return the manifests that give skills in the folder a name, the topmost one first.

        That is the folder's `own` one, else the nearest above it; and of every folder below it the first kind
        that is there.  Raises BundleFull.
        """
        found = [own or self._above(), *map(self.read, self._first_manifests())]
        return [manifest for manifest in found if manifest is not None]

    def _above(self) -> TextFile | None:
        """Return the manifest of the nearest folder above."""
        folder = self.root
        while folder != b"/":
            folder = os.path.dirname(folder)
            found = self.manifest(folder)
            if found is not None:
                return found
        return None

    def _first_manifests(self) -> list[bytes]:
        """Return the path of one manifest for each folder below that has some."""
        first: dict[bytes, bytes] = {}
        for name in MANIFESTS:
            for path in self.paths:
                if path.endswith(b"/" + name):
                    first.setdefault(path.removesuffix(b"/" + name), path)
        first.pop(self.root.rstrip(b"/"), None)
        return [first[folder] for folder in sorted(first)]

    def plugin(self, manifest: TextFile) -> Plugin:
        """Return a manifest with the files that it names.  Raises BundleFull."""
        members = parse_object(manifest.contents) or {}
        return Plugin(
            manifest=manifest,
            mcp_config=self._config(manifest, "mcpServers", members.get("mcpServers"), b".mcp.json"),
            apps_config=self._config(manifest, "apps", members.get("apps"), b".app.json"),
        )

    def _config(self, manifest: TextFile, member: str, said: object, default: bytes) -> TextFile | None:
        if isinstance(said, dict):
            return None  # all of it is in the manifest
        if isinstance(said, str):
            try:
                found = self.read_found(_below(self.root, said))
                self.misses_files |= found is None
                return found
            except ValueError as reason:
                self.warnings.append(f"ignoring {member} in {manifest.path.uri}: {reason}")
        return self.read_found(os.path.join(self.root, default))


def _is_below(path: bytes, root: bytes) -> bool:
    return path.startswith(root.rstrip(b"/") + b"/")


def _below(root: bytes, said: str) -> bytes:
    """Return the path that a manifest names.  Raises ValueError with the contract's reason."""
    if not said.startswith("./"):
        raise ValueError("path must start with `./`")
    parts = [part for part in os.fsencode(said).split(b"/") if part not in (b"", b".")]
    if not parts or b".." in parts or b"\0" in parts[0]:
        raise ValueError("path must remain below the capability root")
    return os.path.join(root, *parts)
