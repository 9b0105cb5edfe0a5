"""`codex-fs` beside the newest reference's file helper: what only that one has."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.files.test_capability_loading import MANIFESTS, put, skill
from tests.helpers.test_codex_fs import COMMAND
from tests.helpers.test_fs_loading import COMMAND as LOADING_COMMAND
from tests.helpers.test_fs_operations import grow
from tests.reference.install import ReferenceMissing, reference_binary
from tests.reference.test_fs_helper import R, ask, bare, call

NO_ROOTS: list[Any] = []
NEWEST = [
    call("capabilityRoots/discoverV1", roots=roots)
    for roots in (
        NO_ROOTS,
        [{"id": "p", "path": f"file://{R}/dir"}],
        [{"id": "", "path": f"file://{R}/{name}"} for name in ("", "file", "missing", "fifo")],
        [
            {"id": "h", "path": "file://host/x"},
            {"id": "link", "path": f"file://{R}/dirlink", "sandbox": None},
        ],
        [{"id": "", "path": "file:///none"}] * 129,
    )
]
BROKEN_ROOTS: list[Any] = [
    None,
    3,
    [3],
    [[]],
    [{}],
    [{"id": 3}],
    [{"id": "x"}],
    [{"path": "file:///x"}],
    [{"id": "", "path": "file:///x", "sandbox": {}}],
]
NEWEST_UNREADABLE = [
    *(call("capabilityRoots/discoverV1", roots=roots) for roots in BROKEN_ROOTS),
    *(f'{{"operation":"capabilityRoots/discoverV1","params":{params}}}' for params in ("3", "[]", "null")),
]


@pytest.fixture(scope="session")
def newest_helper() -> list[str]:
    """The command of the newest reference's helper."""
    try:
        return [str(reference_binary("0.169.0")), "--codex-run-as-fs-helper"]
    except ReferenceMissing as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("request_text", NEWEST)
def test_folders_are_searched_as_by_the_newest(
    tmp_path: Path, newest_helper: list[str], request_text: str
) -> None:
    root = Path(os.path.realpath(tmp_path), "tree")
    root.mkdir()
    grow(root)
    for name in (
        "dir/s/SKILL.md",
        "dir/s/agents/openai.yaml",
        "dir/.codex-plugin/plugin.json",
        "dir/.mcp.json",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text('{"apps":"no"}')
    ours, theirs = (ask(command, request_text, root) for command in (COMMAND, newest_helper))
    assert ours == theirs
    assert (ours.status, ours.reason) == (0, "")


@pytest.mark.parametrize("request_text", NEWEST_UNREADABLE)
def test_a_search_that_cannot_be_understood_is_refused_as_by_the_newest(
    tmp_path: Path, newest_helper: list[str], request_text: str
) -> None:
    ours, theirs = ask(COMMAND, request_text, tmp_path), ask(newest_helper, request_text, tmp_path)
    assert (ours.status, ours.reply) == (theirs.status, theirs.reply) == (1, None)
    assert bare(ours.reason) == bare(theirs.reason)


def load(*locations: object, warnings: tuple[str, ...] = ()) -> str:
    return call("capabilities/loadDiscoveries", locations=locations, warnings=warnings)


PLUGIN = {"id": "p@m", "version": "1", "remote_plugin_id": "r"}
WAYS: list[dict[str, object]] = [
    {},
    {"standalone_root_id": "s"},
    {"plugin": PLUGIN},
    {"plugin": PLUGIN, "standalone_root_id": "s"},
]


def same_answer(request: str, root: Path, newest: list[str]) -> Any:
    """Return the response of both helpers."""
    ours, theirs = (ask(command, request, root) for command in (LOADING_COMMAND, newest))
    assert ours == theirs
    assert (ours.status, ours.reason) == (0, "")
    return ours.reply["payload"]["response"]


def test_manifests_name_skills_as_for_the_newest(tmp_path: Path, newest_helper: list[str]) -> None:
    """Each kind of manifest in a folder of its own, in one nested folder, and above."""
    broken = [b"\xff", b'{"name":"' + b"n" * 200 + b'"}', b'{"name":"n","apps":"./x"}', b'{"mcpServers":"x"}']
    # Theirs looks for the files that a manifest names in an array, too.
    texts = [*(text.encode() for text in MANIFESTS if not text.startswith('["')), *broken]
    for number, text in enumerate(texts):
        root = tmp_path / f"{number}"
        for name in ("in/q", "outer/in/q", "outer/out", "above/x/q"):
            skill(root / name)
        for name in ("in", "outer/in", "above"):
            (root / name).mkdir(exist_ok=True)
            put(root / name / ".codex-plugin/plugin.json", text)
            put(root / name / ".claude-plugin/plugin.json", '{"name":"claude"}')
        put(root / "outer/.cursor-plugin/plugin.json", '{"name":"outer"}')
        request = load(
            *(
                {"root": f"file://{R}/{number}/{name}", **way}
                for name in ("", "in", "outer", "above/x")
                for way in WAYS[:: 1 if number == 0 else 2]
            )
        )
        same_answer(request, tmp_path, newest_helper)


def test_places_are_loaded_as_by_the_newest(tmp_path: Path, newest_helper: list[str]) -> None:
    root = Path(os.path.realpath(tmp_path), "tree")
    root.mkdir()
    grow(root)
    skill(root / "dir/s")
    put(root / "dir/s/agents/openai.yaml", "dependencies:\n  tools:\n  - {type: mcp, value: v}\npolicy: {}\n")
    put(root / "dir/bad/SKILL.md", "x")
    skill(root / "dir/folder", "metadata: {short-description: s}")
    names = ("", "dir", "dirlink", "file", "fifo", "missing", "file/x", "loop", "n" * 300, "dir", "dir/s")
    places = [{"root": f"file://{R}/{name}", **way} for name in names for way in WAYS]
    found = same_answer(load({"root": "file://host/x"}, *places, warnings=("", "w")), root, newest_helper)
    assert len(found["skills"]) > 4
    full = load(*places, warnings=tuple(f"w{number}" for number in range(70)))
    assert len(same_answer(full, root, newest_helper)["warnings"]) == 64


def test_a_full_answer_is_that_of_the_newest(tmp_path: Path, newest_helper: list[str]) -> None:
    put(tmp_path / "big/.codex-plugin/plugin.json", json.dumps({"x": "y" * 1_000_000}))
    skill(tmp_path / "big/q")
    plugin = {"root": f"file://{R}/big", "plugin": PLUGIN}
    warnings = tuple(f"w{number}" for number in range(64))
    found = same_answer(load(*[plugin] * 6, warnings=warnings), tmp_path, newest_helper)
    assert (len(found["plugins"]), len(found["warnings"])) == (4, 64)


@pytest.mark.parametrize(
    "params",
    [
        *("[]", "null", "3", "{}", '{"locations":[]}', '{"locations":{},"warnings":[]}'),
        *('{"locations":[],"warnings":[5]}', '{"warnings":[5],"locations":[5]}'),
        *(
            f'{{"locations":[{place}],"warnings":[]}}'
            for place in (
                *("3", "null", "{}", '{"root":5}', '{"root":"http://x"}', "[]"),
                *('["file:///x",null]', '["file:///x",null,[]]', '["file:///x",null,["a","1"]]'),
                *('{"root":"file:///x","standalone_root_id":5}', '{"root":"file:///x","plugin":5}'),
                *('{"root":"file:///x","plugin":{"id":"a"}}', '{"root":"file:///x","plugin":{"id":5}}'),
            )
        ),
    ],
)
def test_places_that_cannot_be_understood_are_refused_as_by_the_newest(
    tmp_path: Path, newest_helper: list[str], params: str
) -> None:
    request = f'{{"operation":"capabilities/loadDiscoveries","params":{params}}}'
    ours, theirs = ask(COMMAND, request, tmp_path), ask(newest_helper, request, tmp_path)
    assert (ours.status, ours.reply) == (theirs.status, theirs.reply) == (1, None)
    assert bare(ours.reason) == bare(theirs.reason)
