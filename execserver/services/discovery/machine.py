"""`capabilities/discoverV2`: the plugins installed for the server's user, and skills for all projects.

What cannot be read because of the sandbox does not exist.  Limits: 2,048 plugins and skills, 4 MiB of answer,
1 MiB of text to parse; where something is left out, a warning says so.
"""

from __future__ import annotations

import functools
import os
import re
from typing import TYPE_CHECKING

import msgspec

from execserver.files.capability_bundle import (
    MAX_BUNDLE_BYTES,
    METADATA,
    SKILL,
    Budget,
    Bundle,
    BundleFull,
)
from execserver.protocol.discovery import (
    DiscoveredPlugin,
    DiscoveredSkill,
    DiscoverV2CapabilitiesResponse,
    DiscoveryRoot,
)
from execserver.protocol.errors import NotFound, RpcError
from execserver.protocol.paths import PathUri, display
from execserver.protocol.record import encode_record
from execserver.services.discovery.folders import Folders, plugin_record
from execserver.services.discovery.manifest import compared, names_of, remote_id
from execserver.services.discovery.skill_text import (
    MAX_TEXT_BYTES,
    Unreadable,
    head_of,
    read_head,
    read_metadata,
)
from execserver.services.filesystem import FileService

if TYPE_CHECKING:
    from execserver.files.yielding import Pause
    from execserver.services.sandboxed_files import ConfinedFiles

MAX_ITEMS = 2048
MAX_LOCATIONS = 512
MAX_WARNINGS = 64
MAX_ANSWER_BYTES = 4 * 1024 * 1024
MAX_PARSED_BYTES = 1024 * 1024

LOCATION = "some capability locations could not be resolved; discovery may be incomplete"
METADATA_LOST = "some capability metadata could not be loaded; discovery may be incomplete"
FULL = "capability discovery size limit reached"

_INSTALLED = b".codex-remote-plugin-install.json"
_NAME = re.compile(r"[A-Za-z0-9._-]+")

# A skill's files as they were read: SKILL.md's head, the metadata's text, and where SKILL.md is.
Texts = tuple[PathUri, str, "str | None"]


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
        self._files = files
        self._operations = operations
        self._places = places
        self._total = Budget(MAX_BUNDLE_BYTES)
        self._parsed = Budget(MAX_PARSED_BYTES)
        self._answer = Budget(MAX_ANSWER_BYTES)
        self._items = Budget(MAX_ITEMS)
        self._warnings: list[str] = []
        self._full = False

    def run(self) -> DiscoverV2CapabilitiesResponse:
        """Return what there is."""
        plugins: list[DiscoveredPlugin] = []
        skills: list[DiscoveredSkill] = []
        try:
            for identity, folder in self._plugin_folders():
                plugins += self._plugin(identity, folder)
            for root_id, root in self._places.skills:
                skills += self._standalone(root_id, root)
        except BundleFull:
            self._full = True
        warnings = ([FULL] if self._full else []) + self._warnings
        return DiscoverV2CapabilitiesResponse(
            plugins=tuple(plugins), skills=tuple(skills), warnings=tuple(warnings[:MAX_WARNINGS])
        )

    # --- plugins -----------------------------------------------------------------------------------------

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
            self._warnings.append(LOCATION)
        if len(found) > MAX_LOCATIONS:
            self._full = True
        return sorted(found.items())[:MAX_LOCATIONS]

    def _folders(self, path: bytes) -> list[str]:
        try:
            entries = self._operations.read_directory(path)
        except (OSError, RpcError):
            return []
        return sorted(name for name, is_directory, _ in entries if is_directory)

    def _plugin(self, identity: str, folder: bytes) -> list[DiscoveredPlugin]:
        """Return a plugin in the version that counts, nothing if its manifest cannot be used."""
        versions = self._folders(folder)
        if not versions:
            return []
        version = "local" if "local" in versions else max(versions, key=functools.cmp_to_key(compared))
        bundle = self._bundle(os.path.join(folder, os.fsencode(version)))
        manifest = bundle.manifest(bundle.root) if bundle is not None else None
        names = None if manifest is None else names_of(manifest.contents, version)
        if bundle is None or manifest is None or names is None:
            self._warnings.append(METADATA_LOST)
            return []
        name, display_name = names
        files, installed = plugin_record(bundle.plugin(manifest)), self._remote_id(bundle, folder)
        plugin = DiscoveredPlugin(
            id=identity,
            display_name=display_name,
            remote_plugin_id=installed,
            version=version,
            root=PathUri.from_native(bundle.root),
            files=files,
            skills=tuple(self._skills(bundle, f"{name}:", msgspec.UNSET)),
        )
        self._items.take(1)
        self._answer.take(len(encode_record(files)))
        return [plugin]

    def _remote_id(self, bundle: Bundle, folder: bytes) -> str | None:
        file = bundle.read(os.path.join(folder, _INSTALLED))
        return None if file is None else remote_id(file.contents)

    # --- skills ------------------------------------------------------------------------------------------

    def _standalone(self, root_id: str, root: bytes) -> list[DiscoveredSkill]:
        bundle = self._bundle(root)
        if bundle is None:
            return []
        return self._skills(bundle, "", DiscoveryRoot(id=root_id, path=PathUri.from_native(root)))

    def _bundle(self, root: bytes) -> Bundle | None:
        """Return a folder with what is in it, None if there is none."""
        bundle = Folders(self._files, self._operations).bundle(root, self._total)
        try:
            if not bundle.is_directory():
                return None
            bundle.scan()
        except NotFound:
            return None
        except RpcError:
            self._warnings.append(LOCATION)
            return None
        return bundle

    def _skills(
        self, bundle: Bundle, prefix: str, root: DiscoveryRoot | msgspec.UnsetType
    ) -> list[DiscoveredSkill]:
        """Return the skills in a folder; the warning about those that are left out comes once."""
        texts, lost = self._all_texts(bundle)
        if not texts and not lost and not bundle.warnings:
            return []
        parsed = self._files.in_thread(lambda pause: [_described(each, pause) for each in texts])
        found = []
        for skill, complete in filter(None, parsed):
            lost = lost or not complete
            skill = msgspec.structs.replace(skill, name=prefix + skill.name, discovery_root=root)
            try:
                self._items.take(1)
                self._answer.take(len(encode_record(skill)))
            except BundleFull:
                self._full = True
                break
            found.append(skill)
        if lost or None in parsed or bundle.warnings:
            self._warnings.append(METADATA_LOST)
        return found

    def _all_texts(self, bundle: Bundle) -> tuple[list[Texts], bool]:
        """Return the texts of the skills in a folder, and whether some could not be read."""
        texts, lost = [], False
        for path in bundle.named(SKILL):
            try:
                texts.append(self._texts(bundle, path))
            except Unreadable:
                lost = True
            except BundleFull:
                self._full = True
                break
        return texts, lost

    def _texts(self, bundle: Bundle, path: bytes) -> Texts:
        """Read the files of a skill.  Raises Unreadable, and BundleFull when too much is to be parsed."""
        instructions = bundle.read(path)
        if instructions is None:
            raise Unreadable
        head = head_of(instructions.contents)
        metadata = bundle.read_found(os.path.join(os.path.dirname(path), METADATA))
        text = None if metadata is None else metadata.contents
        self._parsed.take(len(head) + min(len(text or ""), MAX_TEXT_BYTES))
        return instructions.path, head, text


def _described(texts: Texts, pause: Pause) -> tuple[DiscoveredSkill, bool] | None:
    """Return a skill, and whether its metadata could be used; None if its head says nothing."""
    path, head, metadata = texts
    pause()
    try:
        name, description, short = read_head(head)
    except Unreadable:
        return None
    complete, dependencies, policy = True, None, None
    if metadata is not None:
        try:
            dependencies, policy = read_metadata(metadata)
        except Unreadable:
            complete = False
    folder = os.path.basename(os.path.dirname(path.native()))
    skill = DiscoveredSkill(
        name=name or display(folder),
        description=description,
        short_description=short,
        path=path,
        dependencies=dependencies,
        policy=policy,
    )
    return skill, complete
