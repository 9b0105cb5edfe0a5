"""The plugins and skills at known places, read and described within limits.

For `capabilities/discoverV2`, where the server finds the places, and for `capabilities/loadDiscoveries` of
the file helper, where the caller names them.  What may not be read does not exist.  An answer has at most
2,048 plugins and skills, 4 MiB and 64 warnings, and takes 1 MiB of text to parse and 40 MiB of files; where
something is left out, a warning says so.
"""

from __future__ import annotations

import os

from execserver.files.capability_bundle import METADATA, SKILL, Budget, Bundle, BundleFull
from execserver.files.capability_names import folder_name, names_by_folder, nearest, plugin_names
from execserver.files.capability_roots import MAX_BYTES
from execserver.files.yielding import no_pause
from execserver.protocol.errors import InvalidRequest, NotFound, RpcError
from execserver.protocol.json_text import write
from execserver.protocol.paths import ForeignPath, PathUri, display

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from execserver.files.capability_bundle import Plugin, Reading, TextFile
    from execserver.files.yielding import Pause

    Members = dict[str, object]
    # Id, version, and the id where it was installed from.
    Installed = tuple[str, str, str | None]
    # A folder; the id under which its skills were looked for; the plugin that it is.
    Location = tuple[PathUri, str | None, Installed | None]
    # A skill's files as they were read: where SKILL.md is, its head, the metadata's text.
    Texts = tuple[PathUri, str, str | None]
    # A skill, and whether its metadata could be used; None if its head says nothing.
    Described = tuple[Members, bool] | None
    Describe = Callable[[Callable[[Pause], list[Described]]], list[Described]]

MAX_ITEMS = 2048
MAX_WARNINGS = 64
MAX_ANSWER_BYTES = 4 * 1024 * 1024
MAX_PARSED_BYTES = 1024 * 1024
MAX_NAME = 128  # characters of a skill's name with the one before it

METADATA_LOST = "some capability metadata could not be loaded; discovery may be incomplete"
FULL = "capability discovery size limit reached"


class _Lost(Exception):
    """Something of a place is left out."""


class Loading:
    """One answer, as it grows place by place; `describe` runs what takes long."""

    def __init__(
        self, reading: Reading, describe: Describe, pause: Pause = no_pause, warnings: Iterable[str] = ()
    ) -> None:
        self._reading = reading
        self._describe = describe
        self._pause = pause
        self._total = Budget(MAX_BYTES)
        self._parsed = Budget(MAX_PARSED_BYTES)
        self._answer = Budget(MAX_ANSWER_BYTES)
        self._items = Budget(MAX_ITEMS)
        self._plugins: list[Members] = []
        self._skills: list[Members] = []
        self.warnings = list(warnings)
        self.is_full = False

    def text(self) -> str:
        """Return the answer in JSON."""
        warnings = ([FULL] if self.is_full else []) + self.warnings
        found = {"plugins": self._plugins, "skills": self._skills, "warnings": warnings[:MAX_WARNINGS]}
        return write(found)

    def add(self, location: Location) -> None:
        """Add what is at a place; the warning about what is left out of it comes once."""
        path, root_id, installed = location
        root: Members | None = None if root_id is None else {"id": root_id, "path": path.uri}
        try:
            bundle = self._bundle(path)
            if bundle is None:
                return
            if installed is None:
                complete = self._add_skills(bundle, self._manifest(bundle), root, self._skills)
            else:
                complete = self._add_plugin(bundle, root, installed)
        except (_Lost, BundleFull):
            complete = False
        if not complete:
            self.warnings.append(METADATA_LOST)

    def _bundle(self, path: PathUri) -> Bundle | None:
        """Return a folder with what is in it, None if there is none.  Raises _Lost."""
        if not self._items.left:
            self.is_full = True
            return None
        try:
            bundle = Bundle(self._reading, path.native(), self._total, self._pause)
            if not bundle.is_directory():
                return None
            bundle.scan()
            return bundle
        except ForeignPath:
            raise _Lost from None
        except (NotFound, InvalidRequest):
            return None  # not there, or not to be read
        except RpcError:
            raise _Lost from None

    def _manifest(self, bundle: Bundle) -> TextFile | None:
        """Return the manifest of a folder that is no plugin; what is wrong in it is a warning, too."""
        manifest = bundle.manifest(bundle.root)
        if manifest is not None:
            bundle.plugin(manifest)
        return manifest

    def _has_room(self, item: Members) -> bool:
        try:
            self._items.take(1)
            self._answer.take(len(write(item).encode()))
        except BundleFull:
            self.is_full = True
            return False
        return True

    # --- plugins -----------------------------------------------------------------------------------------

    def _add_plugin(self, bundle: Bundle, root: Members | None, installed: Installed) -> bool:
        """Add a plugin with its skills, and return whether that is all.  Raises _Lost and BundleFull."""
        manifest = bundle.manifest(bundle.root)
        names = None if manifest is None else plugin_names(manifest.contents, folder_name(bundle.root))
        if manifest is None or names is None:
            raise _Lost
        identity, version, remote_id = installed
        skills: list[Members] = []
        plugin: Members = {
            "id": identity,
            "displayName": names[1],
            "remotePluginId": remote_id,
            "version": version,
            "root": PathUri.from_native(bundle.root).uri,
            "files": _plugin_files(bundle.plugin(manifest)),
            "skills": skills,
        }
        if not self._has_room(plugin):
            return True
        self._plugins.append(plugin)
        return self._add_skills(bundle, manifest, root, skills) and not bundle.misses_files

    # --- skills ------------------------------------------------------------------------------------------

    def _add_skills(
        self, bundle: Bundle, manifest: TextFile | None, root: Members | None, skills: list[Members]
    ) -> bool:
        """Add the skills in a folder, and return whether these are all.  Raises BundleFull."""
        names = names_by_folder(bundle.namespace_manifests(manifest), self._pause)
        texts, complete = self._all_texts(bundle)
        for found in self._all_described(texts, names, root):
            if found is None:
                complete = False
                continue
            skill, whole = found
            complete = complete and whole
            if not self._has_room(skill):
                break
            skills.append(skill)
        return complete and not bundle.warnings

    def _all_described(
        self, texts: list[Texts], names: dict[bytes, str], root: Members | None
    ) -> list[Described]:
        if not texts:
            return []
        return self._describe(lambda pause: [_described(each, names, root, pause) for each in texts])

    def _all_texts(self, bundle: Bundle) -> tuple[list[Texts], bool]:
        """Return the texts of the skills in a folder, and whether all could be read."""
        texts: list[Texts] = []
        complete = True
        for path in bundle.named(SKILL):
            try:
                text = _texts(bundle, path)
            except BundleFull:
                return texts, False
            if text is None:
                complete = False
                continue
            try:
                self._parsed.take(len(text[1]) + len(text[2] or ""))
            except BundleFull:
                self.is_full = True
                break
            texts.append(text)
        return texts, complete


def _texts(bundle: Bundle, path: bytes) -> Texts | None:
    """Read the files of a skill; None if its SKILL.md has no head.  Raises BundleFull."""
    from execserver.protocol.skill_text import MAX_TEXT_BYTES, Unreadable, head_of  # late: loads PyYAML

    instructions = bundle.read(path)
    if instructions is None:
        return None
    try:
        head = head_of(instructions.contents)
    except Unreadable:
        return None
    metadata = bundle.read_found(os.path.join(os.path.dirname(path), METADATA))
    # One character more than may be parsed, so that it is refused.
    return instructions.path, head, None if metadata is None else metadata.contents[: MAX_TEXT_BYTES + 1]


def _described(texts: Texts, names: dict[bytes, str], root: Members | None, pause: Pause) -> Described:
    """Return a skill under its full name."""
    from execserver.protocol.skill_text import MAX_NAME as MAX_OWN_NAME
    from execserver.protocol.skill_text import Unreadable, read_head, read_metadata

    path, head, metadata = texts
    pause()
    try:
        said, description, short = read_head(head)
    except Unreadable:
        return None
    own = said or display(os.path.basename(os.path.dirname(path.native())))
    before = nearest(names, path.native())
    name = own if before is None else f"{before}:{own}"
    if len(own) > MAX_OWN_NAME or len(name) > MAX_NAME:
        return None
    whole, dependencies, policy = True, None, None
    try:
        if metadata is not None:
            dependencies, policy = read_metadata(metadata)
    except Unreadable:
        whole = False
    skill: Members = {"name": name, "description": description, "shortDescription": short, "path": path.uri}
    if root is not None:
        skill["discoveryRoot"] = root
    return {**skill, "dependencies": dependencies, "policy": policy}, whole


def _plugin_files(plugin: Plugin) -> Members:
    return {
        "manifest": _file(plugin.manifest),
        "mcpConfig": _file(plugin.mcp_config),
        "appsConfig": _file(plugin.apps_config),
    }


def _file(file: TextFile | None) -> Members | None:
    return None if file is None else {"path": file.path.uri, "contents": file.contents}
