"""Finds and reads the files of one folder, within limits: for `capabilityRoots/discoverV1` and `discoverV2`.

A walk goes six levels deep and follows symlinks to directories.  What cannot be read because of a sandbox
does not exist.  A file has at most 1 MiB, all files of a folder 16 MiB; each one left out is a warning.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import gevent

from execserver.files.walk import WalkOptions
from execserver.protocol.discovery import CapabilityFile, PluginFiles
from execserver.protocol.errors import RpcError, from_os_error
from execserver.protocol.paths import PathUri
from execserver.services.discovery.manifest import json_object
from execserver.services.filesystem import FileService
from execserver.services.small_files import FileTooLarge, read_small, utf8_fault

if TYPE_CHECKING:
    from execserver.services.sandboxed_files import ConfinedFiles

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


class Bundle:
    """One folder: what is in it, and its files as they are read."""

    def __init__(
        self, files: FileService, operations: FileService | ConfinedFiles, root: bytes, total: Budget
    ) -> None:
        self._files = files
        self._operations = operations
        self._own = Budget(MAX_BUNDLE_BYTES)
        self._total = total
        self.root = root
        self.warnings: list[str] = []
        self.paths: set[bytes] = set()

    def is_directory(self) -> bool:
        """Return whether the folder is one.  Raises RpcError if it is missing."""
        try:
            return self._operations.get_metadata(self.root)[0]
        except OSError as error:
            raise from_os_error(error) from None

    def scan(self) -> None:
        """Find the files.  Raises RpcError."""
        options = WalkOptions(MAX_DEPTH, MAX_DIRECTORIES, MAX_ENTRIES, follow_links=True, prune_hidden=False)
        try:
            found = self._operations.walk(self.root, options)
        except OSError as error:
            raise from_os_error(error) from None
        self.paths = {PathUri.parse(uri).native() for uri, is_directory in found.entries if not is_directory}
        if found.truncated:
            uri = PathUri.from_native(self.root).uri
            self.warnings.append(f"capability scan reached its traversal limit (root: {uri})")

    def named(self, name: bytes) -> list[bytes]:
        """Return the files that were found with this name, by path."""
        return sorted(path for path in self.paths if os.path.basename(path) == name)

    def read(self, path: bytes) -> CapabilityFile | None:
        """Return a file, None if there is none to read.  Raises BundleFull."""
        gevent.sleep(0)
        uri = PathUri.from_native(path)
        try:
            content = read_small(self._files, self._operations, path, MAX_FILE_BYTES)
            self._own.take(len(content))
            self._total.take(len(content))
            return CapabilityFile(path=uri, contents=content.decode())
        except RpcError:
            return None
        except FileTooLarge:
            text = f"capability file {uri.uri} exceeds the {MAX_FILE_BYTES}-byte limit"
        except UnicodeDecodeError as error:
            text = f"capability file {uri.uri} is not UTF-8: {utf8_fault(error)}"
        self.warnings.append(text)
        return None

    def read_found(self, path: bytes) -> CapabilityFile | None:
        """Return a file that the scan has found, else None.  Raises BundleFull."""
        return self.read(path) if path in self.paths else None

    def manifest(self, folder: bytes) -> CapabilityFile | None:
        """Return the manifest of a folder, found by the scan unless it is above.  Raises BundleFull."""
        for name in MANIFESTS:
            path = os.path.join(folder, name)
            found = self.read_found(path) if _is_below(path, self.root) else self.read(path)
            if found is not None:
                return found
        return None

    def plugin(self, manifest: CapabilityFile) -> PluginFiles:
        """Return a manifest with the files that it names.  Raises BundleFull."""
        members = json_object(manifest.contents) or {}
        return PluginFiles(
            manifest=manifest,
            mcp_config=self._config(manifest, "mcpServers", members.get("mcpServers"), b".mcp.json"),
            apps_config=self._config(manifest, "apps", members.get("apps"), b".app.json"),
        )

    def _config(
        self, manifest: CapabilityFile, member: str, said: object, default: bytes
    ) -> CapabilityFile | None:
        if isinstance(said, dict):
            return None  # all of it is in the manifest
        if isinstance(said, str):
            try:
                return self.read_found(_below(self.root, said))
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
