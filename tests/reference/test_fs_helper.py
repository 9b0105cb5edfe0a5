"""`codex-fs` beside the reference's file helper: same replies, same exit status, same reasons, same files."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.files.test_capability_loading import MANIFESTS, put, skill
from tests.helpers.test_codex_fs import COMMAND, DISABLED, RESTRICTED
from tests.helpers.test_fs_loading import COMMAND as LOADING_COMMAND
from tests.helpers.test_fs_operations import comparable, grow, look
from tests.reference.install import ReferenceMissing, reference_binary

R = "{root}"


def call(operation: str, **params: object) -> str:
    """Return the text of a request."""
    return json.dumps({"operation": operation, "params": params})


class Outcome(NamedTuple):
    """What a caller sees of a helper."""

    status: int
    reply: Any
    reason: str


OPERATIONS = [
    call("fs/readFile", path=f"{R}/file"),
    call("fs/readFile", path=f"file://{R}/file", sandbox=None),
    call("fs/readFile", path=f"{R}/file", sandbox=DISABLED),
    call("fs/readFile", path=f"{R}/link"),
    call("fs/readFile", path=f"{R}/empty"),
    call("fs/readFile", path=f"{R}/dir/inner"),
    call("fs/readFile", path=f"{R}/file/"),
    *(
        call("fs/readFile", path=f"{R}/{name}")
        for name in ("dir", "fifo", "dangling", "loop", "missing", "file/x")
    ),
    call("fs/readFile", path=f"{R}/{'n' * 256}"),
    call("fs/readFile", path="file://host/x"),
    call("fs/readFile", path="file:///C:/x"),
    call("fs/readFile", path="/a\0b"),
    call("fs/readFile", path="/dev/null"),
    call("fs/readFile", path="/proc/self/comm/x"),
    call("fs/writeFile", path=f"{R}/new", dataBase64="eHl6"),
    call("fs/writeFile", path=f"{R}/file", dataBase64=""),
    call("fs/writeFile", path=f"{R}/dangling", dataBase64="eA=="),
    call("fs/writeFile", path=f"{R}/dir", dataBase64="eA=="),
    call("fs/writeFile", path=f"{R}/missing/x", dataBase64="eA=="),
    call("fs/writeFile", path="/dev/null", dataBase64="eA=="),
    *(
        call("fs/writeFile", path=f"{R}/x", dataBase64=text)
        for text in ("*", "eB==", "eA=", "e", "eA==\n", "====")
    ),
    call("fs/writeFile", path="file://host/x", dataBase64="*"),
    call("fs/createDirectory", path=f"{R}/a/b/c"),
    call("fs/createDirectory", path=f"{R}/a/b/c", recursive=None),
    call("fs/createDirectory", path=f"{R}/a/b/c", recursive=False),
    call("fs/createDirectory", path=f"{R}/dir", recursive=True),
    call("fs/createDirectory", path=f"{R}/dir", recursive=False),
    call("fs/createDirectory", path=f"{R}/file", recursive=True),
    call("fs/createDirectory", path=f"{R}/file/x"),
    call("fs/createDirectory", path=f"{R}/dangling"),
    *(
        call("fs/getMetadata", path=f"{R}/{name}")
        for name in ("file", "dir", "link", "fifo", "dangling", "missing")
    ),
    call("fs/getMetadata", path="/dev/null"),
    *(
        call("fs/canonicalize", path=f"{R}/{name}")
        for name in ("link", "dirlink/sub/deep é", "dir/../file", "loop")
    ),
    call("fs/canonicalize", path="/"),
    *(
        call("fs/readDirectory", path=f"{R}/{name}")
        for name in ("", "dir", "dirlink", "file", "missing", "fifo")
    ),
    call("fs/remove", path=f"{R}/file"),
    call("fs/remove", path=f"{R}/link"),
    call("fs/remove", path=f"{R}/dirlink/"),
    call("fs/remove", path=f"{R}/dir"),
    call("fs/remove", path=f"{R}/dir", recursive=False),
    call("fs/remove", path=f"{R}/dir/sub", recursive=None, force=None),
    call("fs/remove", path=f"{R}/missing"),
    call("fs/remove", path=f"{R}/missing", force=False),
    call("fs/remove", path=f"{R}/file/x"),
    *(
        call("fs/copy", sourcePath=f"{R}/{source}", destinationPath=f"{R}/{target}", recursive=recursive)
        for source, target, recursive in [
            ("file", "copy", False),
            ("file", "empty", False),
            ("file", "dir", False),
            ("file", "missing/x", False),
            ("link", "copy", False),
            ("link", "file", False),
            ("dir", "copy", True),
            ("dir", "copy/deep/er", True),
            ("dir", "copy", False),
            ("dir", "dir", True),
            ("dir", "dir/sub/x", True),
            ("dirlink", "copy", True),
            ("fifo", "copy", False),
            ("missing", "copy", False),
            ("", "../{name}-copy", True),
        ]
    ),
    '{"operation":"fs/copy","params":["{root}/file","{root}/copy",false,null]}',
    '{"params":{"path":"{root}/file"},"operation":"fs/readFile"}',
    '{"operation":"fs/readFile","params":{"path":"{root}/file","x":[1e400]},"x":1} \n',
]

UNREADABLE = [
    "",
    " ",
    "{",
    "{\n",
    "nul",
    '"x',
    '{"operation":"fs/readFile","params":{"path":"/x"},}',
    '{"operation":"fs/readFile","params":{"path":"/x"}} x',
    '{"operation":"fs/readFile","params":{"path":"/x\\ud800"}}',
    '{"operation":"fs/readFile","params":{"path":"a\tb"}}',
    '{"operation":"fs/readFile","params":{"path":NaN}}',
    "null",
    "true",
    '"x"',
    "{}",
    '{"operation":"fs/readFile"}',
    '{"params":{}}',
    '{"Operation":"fs/readFile","params":{"path":"/x"}}',
    '{"operation":"","params":{}}',
    call("fs/readFile"),
    '{"operation":"fs/readFile","params":null}',
    '{"operation":"fs/readFile","params":"x"}',
    '{"operation":"fs/readFile","params":true}',
    '{"operation":"fs/readFile","params":[]}',
    call("fs/readFile", path=None),
    call("fs/readFile", path=True),
    call("fs/readFile", path="rel"),
    call("fs/readFile", path="http://x"),
    call("fs/readFile", path="file:///x?y"),
    call("fs/readFile", path="/x", sandbox={}),
    call("fs/readFile", path="/x", sandbox="x"),
    call("fs/writeFile", path="/x"),
    call("fs/writeFile", dataBase64=""),
    call("fs/createDirectory", path="/x", recursive="x"),
    call("fs/remove", path="/x", force=[]),
    call("fs/copy", sourcePath="/x", destinationPath="/y"),
    call("fs/copy", sourcePath="/x", destinationPath="/y", recursive=None),
    call("fs/copy", destinationPath=[], sourcePath="rel", recursive=None),
    '{"operation":"fs/copy","params":["/x","/y",null]}',
]


@pytest.fixture(scope="session")
def helper() -> list[str]:
    """The command of the reference's helper."""
    try:
        return [str(reference_binary("0.142.0")), "--codex-run-as-fs-helper"]
    except ReferenceMissing as missing:
        pytest.skip(str(missing))


def ask(command: list[str], request: str, root: Path) -> Outcome:
    text = request.replace("{root}", str(root)).replace("{name}", root.name)
    done = subprocess.run(
        command,
        input=text.encode(),
        capture_output=True,
        env={"PATH": "/usr/bin:/bin"},
        timeout=60,
        check=False,
    )
    reply = json.loads(done.stdout) if done.stdout else None
    return Outcome(done.returncode, reply, done.stderr.decode())


def bare(reason: str) -> str:
    """Return a reason without the place, which only theirs tells, and the member, which only ours names."""
    reason = re.sub(r"( \(in `[^`]*`\))?( at line \d+ column \d+)?\n$", "", reason)
    # The helper of the reference tells integers from other numbers, its server does not.
    return re.sub(r"integer `-?\d+`", "number", reason)


def without_times(outcome: Outcome, root: Path) -> object:
    reply = outcome.reply
    if isinstance(reply, dict) and isinstance(reply["payload"].get("response"), dict):
        reply["payload"]["response"] = comparable(reply["payload"]["response"], root)
    return json.loads(json.dumps(reply).replace(str(root), "<root>").replace(root.name, "<name>"))


@pytest.mark.parametrize("request_text", OPERATIONS)
def test_an_operation_does_and_answers_the_same(tmp_path: Path, helper: list[str], request_text: str) -> None:
    base = Path(os.path.realpath(tmp_path))
    roots = base / "tree-1", base / "tree-2"
    for root in roots:
        root.mkdir()
        grow(root)
    ours, theirs = (
        ask(command, request_text, root) for command, root in zip((COMMAND, helper), roots, strict=True)
    )
    assert (ours.status, ours.reason) == (theirs.status, theirs.reason) == (0, "")
    assert without_times(ours, roots[0]) == without_times(theirs, roots[1])
    assert look(roots[0]) == look(roots[1])
    copies = [base / f"{root.name}-copy" for root in roots]
    assert look(copies[0]) == look(copies[1])


@pytest.mark.parametrize("request_text", UNREADABLE)
def test_what_cannot_be_understood_is_refused_for_the_same_reason(
    tmp_path: Path, helper: list[str], request_text: str
) -> None:
    ours, theirs = ask(COMMAND, request_text, tmp_path), ask(helper, request_text, tmp_path)
    assert (ours.status, ours.reply) == (theirs.status, theirs.reply) == (1, None)
    # What only the newest helper takes is in the list of ours, too.
    reason = bare(ours.reason)
    for newer in ("capabilities/loadDiscoveries", "capabilityRoots/discoverV1", "fs/open", "fs/walk"):
        reason = reason.replace(f"`{newer}`, ", "")
    assert reason == bare(theirs.reason)


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


def test_a_sandbox_that_restricts_is_ignored_there_and_refused_here(
    tmp_path: Path, helper: list[str]
) -> None:
    grow(tmp_path)
    request = call("fs/readFile", path=f"{tmp_path}/file", sandbox=RESTRICTED)
    assert ask(helper, request, tmp_path).reply["status"] == "ok"
    assert ask(COMMAND, request, tmp_path).reply["status"] == "error"


def test_a_file_is_emptied_by_its_own_copy_there_and_kept_here(tmp_path: Path, helper: list[str]) -> None:
    grow(tmp_path)
    request = call(
        "fs/copy", sourcePath=f"{tmp_path}/file", destinationPath=f"{tmp_path}/link", recursive=False
    )
    assert ask(COMMAND, request, tmp_path).reply["status"] == "error"
    assert (tmp_path / "file").read_bytes() == b"content"
    assert ask(helper, request, tmp_path).reply["status"] == "ok"
    assert (tmp_path / "file").read_bytes() == b""
