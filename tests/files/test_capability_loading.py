"""What is said about plugins and skills at a place.

Names, warnings and limits are those of the reference's file helper (0.169.0), unless docs/compatibility.md
says otherwise.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from execserver.files import capability_loading
from execserver.files.capability_loading import FULL, MAX_NAME, MAX_WARNINGS, METADATA_LOST
from execserver.files.yielding import no_pause
from execserver.protocol.paths import PathUri
from helpers.fs_discovery import FolderFiles
from helpers.fs_operations import PlainFiles

INSTALLED = ("p@m", "1.0", "remote")
MANIFEST = ".codex-plugin/plugin.json"
Place = tuple[Path, str | None, tuple[str, str, str | None] | None]


def load(*places: Place, warnings: tuple[str, ...] = ()) -> Any:
    """Return the answer about some places."""
    files = FolderFiles(PlainFiles())
    loading = capability_loading.Loading(files, lambda describe: describe(no_pause), warnings=warnings)
    for path, root_id, installed in places:
        loading.add((PathUri.from_native(os.fsencode(path)), root_id, installed))
    return json.loads(loading.text())


def names(root: Path) -> list[str]:
    """Return the names of the skills in a folder that is no plugin."""
    return [skill["name"] for skill in load((root, None, None))["skills"]]


def plugin_skills(root: Path) -> list[tuple[str, list[str]]]:
    """Return the name to show of an installed plugin, and those of its skills."""
    found = load((root, None, INSTALLED))["plugins"]
    return [(plugin["displayName"], [skill["name"] for skill in plugin["skills"]]) for plugin in found]


def put(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def skill(folder: Path, head: str | None = None) -> None:
    put(folder / "SKILL.md", f"---\n{head or f'name: {folder.name}'}\ndescription: d\n---\n")


# What a manifest says -> the name before those of skills in its folder, and whether a plugin can have it.
MANIFESTS = {
    '{"name":"n"}': ("n", True),
    '{"name":" n "}': (" n ", True),
    '{"name":"a:b"}': ("a:b", True),
    "{}": ("in", True),
    '{"name":""}': ("in", True),
    '{"name":"  "}': ("in", True),
    '{"name":"n","mcpServers":5,"version":5,"x":"\\ud800"}': ("n", True),
    '{"name":"n","interface":null,"apps":null}': ("n", True),
    '{"name":"n","interface":{"displayName":null,"logo":5}}': ("n", True),
    '{"name":"n","interface":5}': ("n", False),
    '{"name":"n","interface":[]}': ("n", False),
    '{"name":"n","interface":"x"}': ("n", False),
    '{"name":"n","interface":{"displayName":5}}': ("n", False),
    '{"name":"n","apps":{}}': ("n", False),
    "[]": ("in", False),
    '["n"]': ("n", False),
    "[1]": (None, False),
    '["n","x"]': (None, False),
    '{"name":5}': (None, False),
    '{"name":null}': (None, False),
    '{"name":"\\ud800"}': (None, False),
    '{"name":"n","x":NaN}': (None, False),
    "{": (None, False),
    "": (None, False),
    "null": (None, False),
    '"n"': (None, False),
    '\ufeff{"name":"n"}': (None, False),
}


@pytest.mark.parametrize("text", MANIFESTS)
def test_a_manifest_names_the_skills_of_its_folder(tmp_path: Path, text: str) -> None:
    """One that gives no name is not replaced by that of another kind."""
    name, usable = MANIFESTS[text]
    for folder in ("in/q", "out"):
        skill(tmp_path / folder)
    put(tmp_path / "in" / MANIFEST, text)
    put(tmp_path / "in/.claude-plugin/plugin.json", '{"name":"claude"}')
    full = "q" if name is None else f"{name}:q"
    assert names(tmp_path) == [full, "out"]
    assert plugin_skills(tmp_path / "in") == ([(name, [full])] if usable else [])
    assert load((tmp_path / "in", None, INSTALLED))["warnings"] == ([] if usable else [METADATA_LOST])


def test_the_nearest_manifest_counts(tmp_path: Path) -> None:
    root = tmp_path / "above" / "x" / "root"
    skill(root / "q")
    put(tmp_path / "above" / MANIFEST, '{"name":"above"}')
    assert names(root) == ["above:q"]
    put(root / MANIFEST, '{"name":"outer"}')
    put(root / "q" / MANIFEST, '{"name":"inner"}')
    skill(root / "r")
    assert names(root) == ["inner:q", "outer:r"]
    assert plugin_skills(root) == [("outer", ["inner:q", "outer:r"])]
    put(root / "q" / MANIFEST, "{")
    assert names(root) == ["outer:q", "outer:r"]


def test_a_manifest_above_without_a_name_ends_the_way_up(tmp_path: Path) -> None:
    root = tmp_path / "a" / "b" / "root"
    skill(root / "q")
    put(tmp_path / "a" / MANIFEST, '{"name":"a"}')
    put(tmp_path / "a" / "b" / MANIFEST, '{"name":5}')
    assert names(root) == ["q"]


def test_a_manifest_that_cannot_be_read_is_replaced_in_the_root_and_above_only(tmp_path: Path) -> None:
    root = tmp_path / "root"
    skill(root / "q")
    for folder in (tmp_path, root, root / "q"):
        put(folder / MANIFEST, b"\xff")
        put(folder / ".claude-plugin/plugin.json", json.dumps({"name": folder.name}))
    assert load((root, None, None))["warnings"] == [METADATA_LOST]
    assert names(root) == ["root:q"]
    assert plugin_skills(root) == [("root", ["root:q"])]
    for name in (MANIFEST, ".claude-plugin/plugin.json"):
        (root / name).unlink()
    assert names(root) == [f"{tmp_path.name}:q"]
    assert plugin_skills(root) == []


def test_links_keep_the_path_by_which_they_are_reached(tmp_path: Path) -> None:
    skill(tmp_path / "elsewhere" / "q")
    put(tmp_path / "root" / MANIFEST, '{"name":"n"}')
    (tmp_path / "root" / "link").symlink_to(tmp_path / "elsewhere")
    assert names(tmp_path / "root" / "link") == names(tmp_path / "root") == ["n:q"]


def test_a_folder_that_is_not_utf_8_names_as_in_a_uri(tmp_path: Path) -> None:
    root = Path(os.fsdecode(os.fsencode(tmp_path) + b"/n\xff"))
    skill(root / "q")
    put(root / MANIFEST, "{}")
    assert names(root) == ["n%FF:q"]


def test_long_names_are_left_out(tmp_path: Path) -> None:
    for number in (126, 127):
        put(tmp_path / f"{number}" / MANIFEST, json.dumps({"name": "é" * (MAX_NAME - 2 + number - 126)}))
        skill(tmp_path / f"{number}" / "q")
    put(tmp_path / "long" / ("f" * 65) / "SKILL.md", "---\ndescription: d\n---\n")
    assert [len(name) for name in names(tmp_path)] == [MAX_NAME]
    for folder in ("127", "long"):
        assert load((tmp_path / folder, None, None))["warnings"] == [METADATA_LOST]


def test_a_plugin_has_its_files_and_skills(tmp_path: Path) -> None:
    manifest = '{"name":"n","interface":{"displayName":" Shown "},"apps":"./apps"}'
    put(tmp_path / MANIFEST, manifest)
    put(tmp_path / ".mcp.json", "m")
    put(tmp_path / "apps", "a")
    skill(tmp_path / "q")
    root = PathUri.from_native(os.fsencode(tmp_path)).uri
    answer = load((tmp_path, "found", INSTALLED))
    assert (answer["skills"], answer["warnings"]) == ([], [])
    [plugin] = answer["plugins"]
    assert plugin == {
        "id": "p@m",
        "displayName": "Shown",
        "remotePluginId": "remote",
        "version": "1.0",
        "root": root,
        "files": {
            "manifest": {"path": f"{root}/{MANIFEST}", "contents": manifest},
            "mcpConfig": {"path": f"{root}/.mcp.json", "contents": "m"},
            "appsConfig": {"path": f"{root}/apps", "contents": "a"},
        },
        "skills": [
            {
                "name": "n:q",
                "description": "d",
                "shortDescription": None,
                "path": f"{root}/q/SKILL.md",
                "discoveryRoot": {"id": "found", "path": root},
                "dependencies": None,
                "policy": None,
            }
        ],
    }


@pytest.mark.parametrize("said", ['"apps":"./x"', '"mcpServers":"./x"', '"apps":"x"', '"mcpServers":"../x"'])
def test_a_file_that_a_manifest_names_in_vain_is_a_warning(tmp_path: Path, said: str) -> None:
    put(tmp_path / MANIFEST, f'{{"name":"n",{said}}}')
    answer = load((tmp_path, None, INSTALLED))
    assert len(answer["plugins"]) == 1
    assert answer["warnings"] == [METADATA_LOST]


def test_a_place_without_a_folder_has_nothing_and_one_that_cannot_be_looked_at_a_warning(
    tmp_path: Path,
) -> None:
    put(tmp_path / "file", "x")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    for installed in (None, INSTALLED):
        quiet = [(tmp_path / name, None, installed) for name in ("none", "file", "fifo")]
        assert load(*quiet) == {"plugins": [], "skills": [], "warnings": []}
        faults = [(tmp_path / name, None, installed) for name in ("file/x", "loop", "n" * 300)]
        assert load(*faults)["warnings"] == [METADATA_LOST] * 3


def test_the_same_place_twice_has_its_skills_twice_and_one_warning_each(tmp_path: Path) -> None:
    skill(tmp_path / "q")
    put(tmp_path / "bad" / "SKILL.md", "x")
    put(tmp_path / "q" / "agents" / "openai.yaml", "[")
    answer = load(*[(tmp_path, None, None)] * 2)
    assert [each["name"] for each in answer["skills"]] == ["q", "q"]
    assert answer["warnings"] == [METADATA_LOST] * 2


def test_warnings_that_were_there_come_first_and_all_have_a_limit(tmp_path: Path) -> None:
    given = tuple(f"w{number}" for number in range(MAX_WARNINGS))
    put(tmp_path / "SKILL.md", "x")
    place = (tmp_path, None, None)
    assert load(place, warnings=("", "a", "a"))["warnings"] == ["", "a", "a", METADATA_LOST]
    assert load(place, warnings=given[1:])["warnings"] == [*given[1:], METADATA_LOST]
    assert load(place, warnings=(*given, "x"))["warnings"] == list(given)


def test_a_full_answer_says_so_before_all_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capability_loading, "MAX_ITEMS", 5)
    put(tmp_path / MANIFEST, "{}")
    for name in "ab":
        skill(tmp_path / name)
    given = tuple(f"w{number}" for number in range(MAX_WARNINGS))
    answer = load(*[(tmp_path, None, INSTALLED)] * 3, (tmp_path, None, None), warnings=given)
    assert [len(plugin["skills"]) for plugin in answer["plugins"]] == [2, 1]
    assert answer["skills"] == []
    assert answer["warnings"] == [FULL, *given[:-1]]


def test_what_does_not_fit_leaves_room_for_less(tmp_path: Path) -> None:
    put(tmp_path / "big" / MANIFEST, json.dumps({"x": "y" * 1_000_000}))
    skill(tmp_path / "small" / "q")
    answer = load(*[(tmp_path / "big", None, INSTALLED)] * 6, (tmp_path / "small", None, None))
    assert (len(answer["plugins"]), len(answer["skills"])) == (4, 1)
    assert answer["warnings"] == [FULL]


def test_files_beyond_the_limit_of_a_folder_are_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("execserver.files.capability_bundle.MAX_BUNDLE_BYTES", 100)
    for name in "abcd":
        skill(tmp_path / name)
    answer = load((tmp_path, None, None))
    assert [each["name"] for each in answer["skills"]] == ["a", "b", "c"]
    assert answer["warnings"] == [METADATA_LOST]


def test_all_places_together_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capability_loading, "MAX_BYTES", 100)
    skill(tmp_path / "a")
    answer = load(*[(tmp_path, None, None)] * 5)
    assert len(answer["skills"]) == 3
    assert answer["warnings"] == [METADATA_LOST] * 2
