"""`capabilities/discoverV2`: where the plugins of the server's user are, and skills for all projects.

What cannot be read because of the sandbox does not exist.  At most 512 plugins are looked at.  What is there
is read in `execserver.files.capability_loading`, with limits of its own.
"""

from __future__ import annotations

import functools
import os
import re
from typing import TYPE_CHECKING

from execserver.files.capability_bundle import MAX_FILE_BYTES
from execserver.files.capability_loading import Loading
from execserver.files.reading import FileTooLarge
from execserver.protocol.errors import RpcError
from execserver.protocol.paths import PathUri
from execserver.services.discovery.folders import Folders, let_others_run
from execserver.services.discovery.manifest import compared, remote_id
from execserver.services.files.filesystem import FileService

if TYPE_CHECKING:
    from execserver.files.capability_loading import Location
    from execserver.services.files.sandboxed import ConfinedFiles

MAX_LOCATIONS = 512

LOCATION = "some capability locations could not be resolved; discovery may be incomplete"

_INSTALLED = b".codex-remote-plugin-install.json"
_NAME = re.compile(r"[A-Za-z0-9._-]+")


class Places:
    """The folders of a user and of the administrator."""

    def __init__(self, home: bytes | None, codex_home: bytes, system: bytes = b"/etc/codex") -> None:
        self.plugins = os.path.join(codex_home, b"plugins", b"cache")
        self.skills = [("codex-home-skills", os.path.join(codex_home, b"skills"))]
        if home is not None:
            self.skills.append(("user-agent-skills", os.path.join(home, b".agents", b"skills")))
        self.skills.append(("system-skills", os.path.join(system, b"skills")))


class Search:
    """One search through all places."""

    def __init__(self, files: FileService, operations: FileService | ConfinedFiles, places: Places) -> None:
        self._operations = operations
        self._places = places
        self._reading = Folders(files, operations)
        self._loading = Loading(self._reading, files.in_thread, let_others_run)

    def run(self) -> str:
        """Return what there is, as the JSON of a `DiscoverV2CapabilitiesResponse`."""
        for identity, folder in self._plugin_folders():
            location = self._plugin(identity, folder)
            if location is not None:
                self._loading.add(location)
        for root_id, root in self._places.skills:
            self._loading.add((PathUri.from_native(root), root_id, None))
        return self._loading.text()

    def _plugin_folders(self) -> list[tuple[str, bytes]]:
        """Return id and folder of every plugin, by id."""
        found: dict[str, bytes] = {}
        unresolved = False
        for market in self._folders(self._places.plugins):
            for name in self._folders(os.path.join(self._places.plugins, os.fsencode(market))):
                if not _NAME.fullmatch(market) or not _NAME.fullmatch(name):
                    unresolved = True
                    continue
                found[f"{name}@{market}"] = os.path.join(
                    self._places.plugins, os.fsencode(market), os.fsencode(name)
                )
        if unresolved:
            self._loading.warnings.append(LOCATION)
        if len(found) > MAX_LOCATIONS:
            self._loading.is_full = True
        return sorted(found.items())[:MAX_LOCATIONS]

    def _folders(self, path: bytes) -> list[str]:
        try:
            entries = self._operations.read_directory(path)
        except (OSError, RpcError):
            return []
        return sorted(name for name, is_directory, _ in entries if is_directory)

    def _plugin(self, identity: str, folder: bytes) -> Location | None:
        """Return where a plugin is in the version that counts, None if there is none."""
        versions = self._folders(folder)
        if not versions:
            return None
        version = "local" if "local" in versions else max(versions, key=functools.cmp_to_key(compared))
        path = PathUri.from_native(os.path.join(folder, os.fsencode(version)))
        return path, None, (identity, version, self._remote_id(folder))

    def _remote_id(self, folder: bytes) -> str | None:
        try:
            return remote_id(self._reading.read(os.path.join(folder, _INSTALLED), MAX_FILE_BYTES).decode())
        except (OSError, RpcError, FileTooLarge, UnicodeDecodeError):
            return None
