"""`codex-fs` beside the reference's file helper: same replies, same exit status, same reasons, same files."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.helpers.test_codex_fs import COMMAND, DISABLED, RESTRICTED
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
