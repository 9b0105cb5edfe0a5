"""The plugins and skills of a machine; the form of the answers is in the recorded traffic."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from execserver.files import capability_loading
from execserver.files.capability_loading import FULL, METADATA_LOST
from execserver.protocol.discovery import DiscoverV2CapabilitiesResponse
from execserver.protocol.record import decode_value, encode_record
from execserver.services.discovery.machine import LOCATION, Places, Search
from execserver.services.discovery.manifest import compared
from execserver.services.files.filesystem import FileService
from execserver.settings import Settings


def decode(text: str) -> DiscoverV2CapabilitiesResponse:
    """Return an answer; it is written as records are."""
    answer = msgspec.json.decode(text, type=DiscoverV2CapabilitiesResponse, dec_hook=decode_value)
    assert encode_record(answer).decode() == text
    return answer


class Machine:
    """Folders of a user and of the administrator."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.files = FileService(Settings())

    def write(self, name: str, text: str) -> None:
        """Write a file."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def skill(self, name: str, metadata: str | None = None) -> None:
        """Write a skill."""
        self.write(f"{name}/SKILL.md", f"---\nname: {Path(name).name}\ndescription: d\n---\n")
        if metadata is not None:
            self.write(f"{name}/agents/openai.yaml", metadata)

    def plugin(self, name: str, manifest: str = "{}") -> None:
        """Write a plugin."""
        self.write(f"codex/plugins/cache/{name}/.codex-plugin/plugin.json", manifest)

    def found(self) -> DiscoverV2CapabilitiesResponse:
        """Search it."""
        home, codex, etc = (os.fsencode(self.root / name) for name in ("home", "codex", "etc"))
        return decode(Search(self.files, self.files, Places(home, codex, etc)).run())


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Machine]:
    """A machine without anything."""
    made = Machine(tmp_path)
    yield made
    made.files.close()


def test_skills_come_from_three_folders_in_their_order(place: Machine) -> None:
    for name in ("etc/skills/c", "home/.agents/skills/b", "codex/skills/.system/a", "codex/skills/z"):
        place.skill(name)
    found = place.found()
    roots = [skill.discovery_root for skill in found.skills]
    assert [skill.name for skill in found.skills] == ["a", "z", "b", "c"]
    assert [getattr(root, "id", None) for root in roots] == [
        *("codex-home-skills", "codex-home-skills", "user-agent-skills", "system-skills")
    ]
    assert found.warnings == ()


def test_a_machine_without_any_folder_has_nothing(place: Machine) -> None:
    assert place.found() == DiscoverV2CapabilitiesResponse()


def test_broken_skills_are_left_out_with_one_warning_for_a_folder(place: Machine) -> None:
    place.write("codex/skills/bad/SKILL.md", "no head")
    place.write("codex/skills/worse/SKILL.md", "---\nname: [\n---\n")
    place.skill("codex/skills/good", metadata="[")
    found = place.found()
    assert [(skill.name, skill.policy) for skill in found.skills] == [("good", None)]
    assert found.warnings == (METADATA_LOST,)


def test_a_plugin_is_named_by_its_manifest_and_its_skills_by_the_plugin(place: Machine) -> None:
    place.plugin("market/p/1.0.0", '{"name":"manif","interface":{"displayName":"Shown"}}')
    place.plugin("market/folder/2.0.0", '{"name":" ","interface":{"displayName":""}}')
    place.skill("codex/plugins/cache/market/p/1.0.0/anywhere/s")
    found = place.found()
    assert [(one.id, one.display_name) for one in found.plugins] == [
        ("folder@market", "2.0.0"),
        ("p@market", "Shown"),
    ]
    assert [skill.name for skill in found.plugins[1].skills] == ["manif:s"]


def test_skills_outside_plugins_have_the_name_of_the_nearest_manifest_before_theirs(place: Machine) -> None:
    place.skill("codex/skills/a/q")
    place.skill("home/.agents/skills/b")
    place.skill("etc/skills/c")
    place.write("codex/skills/a/.claude-plugin/plugin.json", '{"name":"inner"}')
    place.write("home/.codex-plugin/plugin.json", '{"name":"above"}')
    assert [skill.name for skill in place.found().skills] == ["inner:q", "above:b", "c"]


def test_plugins_without_a_usable_manifest_are_left_out_with_a_warning_each(place: Machine) -> None:
    place.plugin("m/broken/1", "{")
    place.plugin("m/number/1", '{"name":5}')
    place.plugin("m/newer/1.0.0")
    (place.root / "codex/plugins/cache/m/newer/2.0.0").mkdir()
    assert place.found().plugins == ()
    assert place.found().warnings == (METADATA_LOST,) * 3


def test_names_that_could_not_be_told_apart_are_left_out(place: Machine) -> None:
    place.plugin("m k/a@b/1.0.0")
    assert place.found() == DiscoverV2CapabilitiesResponse(warnings=(LOCATION,))


@pytest.mark.parametrize(
    ("versions", "chosen"),
    [
        (("0.9.0", "0.10.0"), "0.10.0"),
        (("1.0.0", "1.0.0-beta.2", "1.0.0-beta.11"), "1.0.0"),
        (("1.0.0-beta.2", "1.0.0-beta.11"), "1.0.0-beta.11"),
        (("1.0.0-1", "1.0.0-a"), "1.0.0-a"),
        (("10", "2", "v3", "zzz"), "zzz"),
        (("9.9.9", "local"), "local"),
    ],
)
def test_one_version_of_a_plugin_counts(place: Machine, versions: tuple[str, ...], chosen: str) -> None:
    for version in versions:
        place.plugin(f"m/p/{version}")
    assert [plugin.version for plugin in place.found().plugins] == [chosen]


def test_versions_that_mean_the_same_are_equal() -> None:
    assert compared("1.0.0+a", "1.0.0+b") == 0


@pytest.mark.parametrize(
    ("text", "remote_id"),
    [
        ('{"schema_version":1,"remote_plugin_id":"r"}', "r"),
        ('{"schema_version":2,"remote_plugin_id":"r"}', None),
        ('{"schema_version":1,"remote_plugin_id":5}', None),
        ("{", None),
    ],
)
def test_an_installed_plugin_knows_where_it_came_from(
    place: Machine, text: str, remote_id: str | None
) -> None:
    place.plugin("m/p/1.0.0")
    place.write("codex/plugins/cache/m/p/.codex-remote-plugin-install.json", text)
    assert place.found().plugins[0].remote_plugin_id == remote_id


@pytest.mark.parametrize(
    ("limit", "value"), [("MAX_ITEMS", 2), ("MAX_ANSWER_BYTES", 700), ("MAX_PARSED_BYTES", 50)]
)
def test_more_than_fits_is_left_out_and_the_first_warning_says_so(
    place: Machine, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(capability_loading, limit, value)
    for name in "abcd":
        place.skill(f"codex/skills/{name}")
    found = place.found()
    assert 0 < len(found.skills) < 4
    assert found.warnings[0] == FULL
