"""How the server reads the folders that it searches, and what it found there as records of the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gevent import sleep

from execserver.files.capability_bundle import Budget, Bundle, Plugin, TextFile
from execserver.files.walk import Walk, WalkOptions
from execserver.protocol.discovery import CapabilityFile, PluginFiles
from execserver.services.files.filesystem import FileService
from execserver.services.files.small import read_small

if TYPE_CHECKING:
    from execserver.services.files.sandboxed import ConfinedFiles


class Folders:
    """Looks at folders with the operations of a request: within its sandbox, and without stopping others."""

    def __init__(self, files: FileService, operations: FileService | ConfinedFiles) -> None:
        self._files = files
        self._operations = operations

    def is_directory(self, path: bytes) -> bool:
        """Return whether a path leads to a directory."""
        return self._operations.get_metadata(path)[0]

    def walk(self, root: bytes, options: WalkOptions) -> Walk:
        """List what is below a directory."""
        return self._operations.walk(root, options)

    def read(self, path: bytes, limit: int) -> bytes:
        """Return the content of a regular file; raise FileTooLarge above `limit` bytes."""
        return read_small(self._files, self._operations, path, limit)

    def bundle(self, root: bytes, total: Budget) -> Bundle:
        """Return one folder, to be read."""
        return Bundle(self, root, total, let_others_run)


def let_others_run() -> None:
    """Let the other greenlets run; called between two files."""
    sleep(0)


def file_record(file: TextFile) -> CapabilityFile:
    """Return a file as it is sent."""
    return CapabilityFile(path=file.path, contents=file.contents)


def optional_record(file: TextFile | None) -> CapabilityFile | None:
    """Return a file as it is sent, None for none."""
    return None if file is None else file_record(file)


def plugin_record(plugin: Plugin) -> PluginFiles:
    """Return the files of a plugin as they are sent."""
    return PluginFiles(
        manifest=file_record(plugin.manifest),
        mcp_config=optional_record(plugin.mcp_config),
        apps_config=optional_record(plugin.apps_config),
    )
