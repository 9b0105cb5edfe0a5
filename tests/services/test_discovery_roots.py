"""What is found in folders; the form of the answers is in the recorded traffic."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from execserver.files import capability_bundle, capability_roots
from execserver.protocol.discovery import (
    CapabilityRoot,
    CapabilityRootParams,
    WireCapabilityRootsDiscoverParams,
)
from execserver.protocol.errors import InternalError
from execserver.protocol.paths import PathUri
from execserver.services.discovery import roots, service
from execserver.services.files.filesystem import FileService
from execserver.settings import Settings


class Folders:
    """Folders to search."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.files = FileService(Settings())

    @property
    def uri(self) -> str:
        """The root, as answers name it."""
        return PathUri.from_native(os.fsencode(self.root)).uri

    def write(self, name: str, text: str | bytes = "x") -> None:
        """Write a file."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    def wanted(self, *names: str) -> WireCapabilityRootsDiscoverParams:
        """Return params for folders."""
        paths = [PathUri.from_native(os.fsencode(self.root / name)) for name in names]
        return WireCapabilityRootsDiscoverParams(
            roots=tuple(CapabilityRootParams(id=path.uri, path=path) for path in paths)
        )

    def found(self, *names: str) -> tuple[CapabilityRoot, ...]:
        """Search folders."""
        return roots.discover(self.files, lambda *_: self.files, self.wanted(*names)).roots

    def skills(self, name: str) -> list[str]:
        """Return the folders of the skills in a folder."""
        prefix = self.root / name
        found = self.found(name)[0].skills
        paths = [Path(os.fsdecode(skill.instructions.path.native())) for skill in found]
        return [str(path.parent.relative_to(prefix)) for path in paths]


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Folders]:
    """No folders yet."""
    made = Folders(tmp_path)
    yield made
    made.files.close()


def test_skills_are_found_six_levels_deep_by_path(folders: Folders) -> None:
    for name in ("a.b", "a/b", "B", "1/2/3/4/5/6", "1/2/3/4/5/6/7"):
        folders.write(f"r/{name}/SKILL.md")
    folders.write("r/skill.md")
    folders.write("r/folder/SKILL.md/x")
    assert folders.skills("r") == ["1/2/3/4/5/6", "B", "a.b", "a/b"]


def test_linked_folders_are_entered_once_and_loops_end(folders: Folders) -> None:
    folders.write("elsewhere/SKILL.md")
    folders.write("r/own/SKILL.md")
    (folders.root / "r/link").symlink_to(folders.root / "elsewhere")
    (folders.root / "r/own/loop").symlink_to(folders.root / "r")
    assert folders.skills("r") == ["link", "own"]


@pytest.mark.parametrize(
    ("manifest", "mcp", "apps", "warnings"),
    [
        ("{", ".mcp.json", ".app.json", 0),
        ("[]", ".mcp.json", ".app.json", 0),
        ('{"mcpServers":5,"apps":5}', ".mcp.json", ".app.json", 0),
        ('{"mcpServers":{},"apps":{}}', None, None, 0),
        ('{"mcpServers":"./no.json","apps":"./no.json"}', None, None, 0),
        ('{"mcpServers":"./a//./x.json","apps":"/abs"}', "a/x.json", ".app.json", 1),
        ('{"mcpServers":"","apps":"./"}', ".mcp.json", ".app.json", 2),
        ('{"mcpServers":"./a/../.mcp.json","apps":"./\\u0000"}', ".mcp.json", ".app.json", 2),
    ],
)
def test_a_plugin_has_the_files_that_its_manifest_names(
    folders: Folders, manifest: str, mcp: str | None, apps: str | None, warnings: int
) -> None:
    for name in (".mcp.json", ".app.json", "a/x.json"):
        folders.write(f"r/{name}")
    folders.write("r/.codex-plugin/plugin.json", manifest)
    found = folders.found("r")[0]
    assert found.plugin is not None
    names = [
        None if file is None else file.path.uri.removeprefix(f"{folders.uri}/r/")
        for file in (found.plugin.mcp_config, found.plugin.apps_config)
    ]
    assert names == [mcp, apps]
    assert len(found.warnings) == warnings


def test_a_manifest_that_cannot_be_read_gives_way_to_the_next_kind(folders: Folders) -> None:
    folders.write("r/.codex-plugin/plugin.json", b"\xff")
    folders.write("r/.claude-plugin/plugin.json", "1")
    folders.write("r/.cursor-plugin/plugin.json", "2")
    found = folders.found("r")[0]
    assert found.plugin is not None
    assert found.plugin.manifest.contents == "1"
    assert "is not UTF-8" in found.warnings[0]


def test_the_nearest_manifest_upwards_comes_before_those_below(folders: Folders) -> None:
    folders.write("p/.codex-plugin/plugin.json", "0")
    folders.write("p/a/b/.codex-plugin/plugin.json", "2")
    folders.write("p/a/b/.claude-plugin/plugin.json", "not this")
    found = folders.found("p/a")[0]
    assert found.plugin is None
    assert [file.contents for file in found.namespace_manifests] == ["0", "2"]


def test_too_many_directories_are_a_warning(folders: Folders) -> None:
    for number in range(capability_bundle.MAX_DIRECTORIES + 1):
        (folders.root / f"r/{number}").mkdir(parents=True)
    uri = f"{folders.uri}/r"
    warning = f"capability scan reached its traversal limit (root: {uri})"
    assert folders.found("r")[0].warnings == (warning,)


def test_a_folder_has_a_limit(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capability_bundle, "MAX_BUNDLE_BYTES", 5)
    for name in "abc":
        folders.write(f"r/{name}/SKILL.md", "xx")
    found = folders.found("r")[0]
    assert len(found.skills) == 2
    assert found.warnings == ("capability root bundle exceeds the 16777216-byte limit",)


def test_all_folders_together_have_a_limit(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capability_roots, "MAX_BYTES", 5)
    for name in "abc":
        folders.write(f"{name}/SKILL.md", "xx")
    found = folders.found("a", "b", "c")
    assert [len(one.skills) for one in found] == [1, 1, 0]
    assert [len(one.warnings) for one in found] == [0, 0, 1]


def test_an_answer_that_no_client_takes_is_an_error(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders.write("r/SKILL.md", "\1" * 100)
    made = service.Discovery(folders.files, {})
    answer = msgspec.json.decode(bytes(made.in_roots(lambda *_: folders.files, folders.wanted("r"))))
    assert answer["roots"][0]["skills"][0]["instructions"]["contents"] == "\1" * 100
    monkeypatch.setattr(service, "MAX_ANSWER_BYTES", 500)
    with pytest.raises(InternalError, match="the result is too large"):
        made.in_roots(lambda *_: folders.files, folders.wanted("r"))


def test_below_the_root_one_manifest_counts_for_a_folder_also_unread(folders: Folders) -> None:
    """As at the newest reference."""
    folders.write("r/in/.codex-plugin/plugin.json", b"\xff")
    folders.write("r/in/.claude-plugin/plugin.json")
    [found] = folders.found("r")
    assert (found.namespace_manifests, len(found.warnings)) == ((), 1)
