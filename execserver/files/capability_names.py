"""What the manifest of a plugin says about names: the plugin's own, and the one before the names of skills.

Skills below a manifest have its name before theirs, also where it is not the manifest of an installed plugin.
For that a manifest may hold less: nothing but `name` has to be of the right form.
"""

from __future__ import annotations

import os

from execserver.files.yielding import no_pause
from execserver.protocol.json_text import parse_object, parse_quietly
from execserver.protocol.paths import encode_segment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.files.capability_bundle import TextFile
    from execserver.files.yielding import Pause


def folder_name(folder: bytes) -> str:
    """Return the name of a folder; one that is not UTF-8 as in a URI."""
    name = os.path.basename(folder)
    try:
        return name.decode()
    except UnicodeDecodeError:
        return encode_segment(name)


def plugin_names(manifest: str, folder: str) -> tuple[str, str] | None:
    """Return the name of a plugin and the one to show, None if its manifest is not usable."""
    said = parse_object(manifest)
    if said is None:
        return None
    name, interface, apps = _name(said.get("name", ""), folder), said.get("interface"), said.get("apps")
    shown = interface.get("displayName") if isinstance(interface, dict) else interface
    if name is None or isinstance(interface, str) or not (_is_text_or_null(apps) and _is_text_or_null(shown)):
        return None
    return name, str(shown or "").strip() or name


def names_by_folder(manifests: list[TextFile], pause: Pause = no_pause) -> dict[bytes, str]:
    """Return the names that manifests give to the skills below their folders."""
    found = {}
    for manifest in manifests:
        pause()  # one may have a mebibyte
        folder = os.path.dirname(os.path.dirname(manifest.path.native()))
        name = _name_before(manifest.contents, folder_name(folder))
        if name:
            found[folder] = name
    return found


def nearest(names: dict[bytes, str], path: bytes) -> str | None:
    """Return the name of the nearest folder above a path that has one."""
    while names and path != b"/":
        path = os.path.dirname(path)
        if path in names:
            return names[path]
    return None


def _name_before(manifest: str, folder: str) -> str | None:
    said = parse_quietly(manifest)
    if isinstance(said, list) and len(said) <= 1:  # an array of its only member
        return _name(said[0] if said else "", folder)
    return _name(said.get("name", ""), folder) if isinstance(said, dict) else None


def _name(said: object, folder: str) -> str | None:
    """Return a name as it is written, that of the folder for a blank one; None for what is no name."""
    if not isinstance(said, str) or not _can_be_sent(said):
        return None
    return said if said.strip() else folder


def _is_text_or_null(said: object) -> bool:
    return said is None or (isinstance(said, str) and _can_be_sent(said))


def _can_be_sent(text: str) -> bool:
    """Tell whether a text has no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
