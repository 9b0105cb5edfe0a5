"""`capabilityRoots/discoverV1` of the file helper: the server's answers, from one process in one sandbox."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from execserver.files.capability_bundle import MAX_FILE_BYTES
from execserver.protocol.json_text import parse_object
from execserver.protocol.paths import PathUri
from tests.helpers.test_codex_fs import DISABLED, ask
from tests.support.newest import make_files
from tests.support.sandboxes import context, deny_glob, managed, read_only, rule, special, workspace_write
from tests.support.source import ROOT

OPERATION = "capabilityRoots/discoverV1"
RECORDED = ROOT / "tests" / "transcripts" / "newest" / "05-capabilityRoots-discoverV1.jsonl"


def uri_of(path: Path) -> str:
    return PathUri.from_native(os.fsencode(path)).uri


def search(*roots: Path, sandbox: object = None) -> Any:
    """Return what the helper finds in folders, or code and message."""
    wanted = [{"id": root.name, "path": uri_of(root), "sandbox": sandbox} for root in roots]
    found = ask(OPERATION, roots=wanted)
    return found["roots"] if isinstance(found, dict) else found


def contents_of(root: Any) -> list[str]:
    return [skill["instructions"]["contents"] for skill in root["skills"]]


def make_skills(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "SKILL.md").write_text(name)


def recorded(root: Path) -> list[tuple[Any, Any]]:
    """Lay the files of the recording below a folder; return params and answer of every search in it."""
    head, *rest = RECORDED.read_text().splitlines()
    make_files(root, json.loads(head)["msg"]["files"])
    place = uri_of(root).removeprefix("file:///")
    messages = [json.loads(line.replace("ROOT", place))["msg"] for line in rest]
    answers = {message["id"]: message for message in messages if "id" in message and "method" not in message}
    pairs = [(message, answers[message["id"]]) for message in messages if message.get("method") == OPERATION]
    return [(asked["params"], answer) for asked, answer in pairs if asked["id"] != 1]  # before `initialize`


def test_it_answers_as_the_reference_server_did(tmp_path: Path) -> None:
    """Broken params are the part of `test_fs_request`."""
    checked = 0
    for params, answer in recorded(tmp_path):
        if "result" in answer:
            assert ask(OPERATION, **params) == answer["result"]
        elif answer["error"]["code"] == -32600:
            assert ask(OPERATION, **params) == (-32600, answer["error"]["message"])
        else:
            continue
        checked += 1
    assert checked >= 8


def test_a_sandbox_hides_what_it_withholds(tmp_path: Path) -> None:
    make_skills(tmp_path / "r", "open", "secret", "private", "pattern")
    make_skills(tmp_path, "out")
    (tmp_path / "r" / "link").symlink_to(tmp_path / "r" / "secret")
    (tmp_path / "r" / "pattern" / "SKILL.md").rename(tmp_path / "r" / "pattern" / "x.key")
    (tmp_path / "r" / "open" / "agents").mkdir()
    (tmp_path / "r" / "open" / "agents" / "openai.yaml").symlink_to(tmp_path / "r" / "secret" / "SKILL.md")
    sandbox = context(
        managed(
            special("root", "read"),
            rule(tmp_path / "r" / "secret", "deny"),
            rule(tmp_path / "out", "deny"),
            deny_glob(f"{tmp_path}/r/private/*.md"),
        ),
        tmp_path,
    )
    found, outside = search(tmp_path / "r", tmp_path / "out", sandbox=sandbox)
    told = json.dumps([found, outside])
    assert '"contents": "secret"' not in told
    assert '"contents": "private"' not in told
    assert '"contents": "out"' not in told
    assert [text for text in contents_of(found) if text] == ["open"]
    opened = next(skill for skill in found["skills"] if skill["instructions"]["contents"] == "open")
    assert opened["metadata"] is None


def test_a_sandbox_that_lets_all_be_read_changes_nothing(tmp_path: Path) -> None:
    make_skills(tmp_path / "r", "a", "b")
    free = search(tmp_path / "r")
    assert [contents_of(root) for root in free] == [["a", "b"]]
    assert search(tmp_path / "r", sandbox=workspace_write(tmp_path)) == free
    assert search(tmp_path / "r", sandbox=DISABLED) == free


def test_folders_with_different_sandboxes_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    make_skills(tmp_path / "r", "a")
    path = uri_of(tmp_path / "r")
    one, other = read_only(tmp_path), workspace_write(tmp_path)
    for sandboxes in ([one, other], [one, None], [None, one, one]):
        wanted = [{"id": "", "path": path, "sandbox": sandbox} for sandbox in sandboxes]
        code, text = ask(OPERATION, roots=wanted)
        assert (code, "in one sandbox" in text) == (-32600, True)
    # Those that restrict nothing are no sandbox, and the same one may come as often as folders.
    wanted = [{"id": "", "path": path, "sandbox": sandbox} for sandbox in (DISABLED, None)]
    assert [contents_of(root) for root in ask(OPERATION, roots=wanted)["roots"]] == [["a"], ["a"]]
    found = search(tmp_path / "r", tmp_path / "r", sandbox=one)
    assert [contents_of(root) for root in found] == [["a"], ["a"]]


def test_a_sandbox_that_cannot_be_made_refuses_the_request(tmp_path: Path) -> None:
    make_skills(tmp_path / "r", "a")
    gone = tmp_path / "gone"
    assert search(tmp_path / "r", sandbox=workspace_write(gone))[0] in (-32600, -32603)


@pytest.mark.parametrize("sandboxed", [False, True])
def test_hostile_folders_end_and_say_so(tmp_path: Path, sandboxed: bool) -> None:
    """A FIFO is not waited for, a loop ends, a manifest leads nowhere else, and names may be any bytes."""
    root = tmp_path / "r"
    make_skills(root, "a")
    (root / "loop").symlink_to(root)
    (root / "f").mkdir()
    os.mkfifo(root / "f" / "SKILL.md")
    odd = os.path.join(os.fsencode(root), b'\xff"\\\n')
    os.mkdir(odd)
    with open(os.path.join(odd, b"SKILL.md"), "wb") as file:
        file.write('\x00\x01"\\\n\u2028é'.encode())
    (root / ".codex-plugin").mkdir()
    manifest = '{"mcpServers":"./../../etc/passwd","apps":"/etc/passwd\\ud800"}' + " " * 100
    (root / ".codex-plugin" / "plugin.json").write_text(manifest)
    found = search(root, sandbox=read_only(tmp_path) if sandboxed else None)[0]
    assert sorted(contents_of(found)) == sorted(['\x00\x01"\\\n\u2028é', "a"])
    assert (found["plugin"]["mcpConfig"], found["plugin"]["appsConfig"]) == (None, None)
    assert len(found["warnings"]) == 2


def test_a_broken_manifest_costs_no_search_for_its_fault(tmp_path: Path) -> None:
    """A mebibyte of it is refused within the time that reading takes, by the server in its only thread."""
    root = tmp_path / "r"
    (root / ".codex-plugin").mkdir(parents=True)
    opened = "[" * MAX_FILE_BYTES
    (root / ".codex-plugin" / "plugin.json").write_text(opened)
    began = time.process_time()
    assert parse_object(opened) is None
    assert time.process_time() - began < 1
    found = search(root)[0]
    assert found["plugin"]["manifest"]["contents"] == opened


def test_the_folders_have_a_limit_together(tmp_path: Path) -> None:
    """40 MiB, as at the server."""
    root = tmp_path / "r"
    for number in range(16):
        (root / str(number)).mkdir(parents=True)
        (root / str(number) / "SKILL.md").write_bytes(b"x" * (1024 * 1024 - 1))
    found = search(root, root, root)
    assert [len(one["skills"]) for one in found] == [16, 16, 8]
    assert [len(one["warnings"]) for one in found] == [0, 0, 1]
