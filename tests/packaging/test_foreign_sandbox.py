"""`codex-fs` of the one file in somebody else's sandbox: no place for a tree, and a start per request."""

from __future__ import annotations

import json
import shlex

import pytest

from tests.support.one_file import Box, Done

MOST_WRITTEN = 16 * 2**20
WORK = "file:///mnt/./w"  # spelt so that the launcher leaves each request to the program
HELPER = "--codex-run-as-fs-helper"
RESTRICTED = {
    "permissions": {
        "type": "managed",
        "file_system": {
            "type": "restricted",
            "entries": [{"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"}],
        },
        "network": "restricted",
    },
    "windowsSandboxLevel": "disabled",
    "cwd": "file:///",
}


@pytest.fixture
def box(one_file: Box) -> Box:
    with one_file.program.open("rb") as file:
        if file.read(2) == b"#!":
            pytest.skip("there was no compiler to build a launcher with")
    return one_file


def ask(box: Box, operation: str, params: dict[str, object], after: str = "", room: str = "64m") -> Done:
    """Ask the helper where every folder is read-only but for an empty /dev/shm."""
    request = shlex.quote(json.dumps({"operation": operation, "params": params}))
    skill = r"---\ndescription: d\n---\n"
    closed = " ".join(
        f"mount -t tmpfs -o ro none {shlex.quote(str(each))};" for each in (box.home, "/var/tmp", "/tmp")
    )
    return box.run_in_new_mounts(
        f'mount -t tmpfs none /mnt; cp "$1" /mnt/x; {closed} mkdir /mnt/w; echo hi > /mnt/w/f;'
        f"printf -- '{skill}' > /mnt/w/SKILL.md;"
        f"mount -t tmpfs -o mode=1777,size={room} none /dev/shm;"
        f"echo {request} | env -i PATH=/usr/bin:/bin /mnt/x {HELPER}; {after}"
    )


@pytest.mark.parametrize("sandbox", [None, RESTRICTED])
@pytest.mark.parametrize(
    ("operation", "params"),
    [
        ("fs/readFile", {"path": f"{WORK}/f"}),
        ("fs/writeFile", {"path": f"{WORK}/g", "dataBase64": "aGk="}),
        ("fs/createDirectory", {"path": f"{WORK}/d"}),
        ("fs/getMetadata", {"path": f"{WORK}/f"}),
        ("fs/getMetadata", {"path": f"{WORK}/f", "followSymlinks": False}),
        ("fs/canonicalize", {"path": f"{WORK}/f"}),
        ("fs/readDirectory", {"path": WORK}),
        (
            "fs/walk",
            {
                "path": WORK,
                "options": {
                    "maxDepth": 3,
                    "maxDirectories": 9,
                    "maxEntries": 9,
                    "followDirectorySymlinks": True,
                },
            },
        ),
        ("fs/remove", {"path": f"{WORK}/f"}),
        (
            "fs/copy",
            {"sourcePath": f"{WORK}/f", "destinationPath": f"{WORK}/c", "recursive": False},
        ),
        ("capabilityRoots/discoverV1", {"roots": [{"id": "w", "path": WORK}]}),
        ("capabilities/loadDiscoveries", {"locations": [{"root": WORK}], "warnings": []}),
    ],
)
def test_every_operation_is_answered_silently_and_leaves_nothing(
    operation: str, params: dict[str, object], sandbox: object, box: Box
) -> None:
    if "roots" in params:
        params = {"roots": [{"id": "w", "path": WORK, "sandbox": sandbox}]}
    done = ask(box, operation, {**params, "sandbox": sandbox}, after="find /dev/shm -name '?new-*'")
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(done.stdout.splitlines()) == 1
    answer = json.loads(done.stdout)
    if sandbox is None:
        assert (answer["status"], answer["payload"]["operation"]) == ("ok", operation)
    else:  # a write is refused, all else works
        assert (
            answer["status"] == "ok" or "sandbox" in answer["payload"]["message"] or "system" in str(answer)
        )


def test_skills_are_read_with_the_parser_of_that_part(box: Box) -> None:
    """PyYAML is in it."""
    params: dict[str, object] = {"locations": [[WORK, None, None]], "warnings": []}
    done = ask(box, "capabilities/loadDiscoveries", params, room=str(MOST_WRITTEN))
    assert (done.returncode, done.stderr) == (0, b"")
    response = json.loads(done.stdout)["payload"]["response"]
    assert [skill["name"] for skill in response["skills"]] == ["w"]


def test_it_writes_a_part_of_the_tree_only(box: Box) -> None:
    done = ask(box, "fs/canonicalize", {"path": WORK, "sandbox": None}, room=str(MOST_WRITTEN))
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["payload"]["response"] == {"path": "file:///mnt/w"}


def test_without_room_for_it_every_reason_is_told(box: Box) -> None:
    done = ask(box, "fs/canonicalize", {"path": WORK, "sandbox": None}, room="1m")
    assert done.stdout == b""
    assert b"No space left on device" in done.stderr
    assert b"What to do: " in done.stderr


def test_a_plain_request_is_answered_without_any_room(box: Box) -> None:
    done = ask(box, "fs/readFile", {"path": "file:///mnt/w/f"}, after="ls -A /dev/shm", room="1m")
    assert (done.returncode, done.stderr) == (0, b"")
    answer, *left = done.stdout.splitlines()
    assert json.loads(answer)["payload"]["response"] == {"dataBase64": "aGkK"}
    assert left == []


def test_what_a_killed_helper_left_is_removed_by_a_later_one(box: Box) -> None:
    place = box.temporary / "execserver-0"
    left = place / ".new-1-2"
    script = f"mkdir -m 700 -p '{place}' '{left}'; touch -d '2 hours ago' '{left}'; echo {{}} | env -i"
    done = box.run_in_new_mounts(f"{script} TMPDIR='{box.temporary}' \"$1\" {HELPER} || ls -A '{place}'")
    assert done.stdout.split() == [b".lock"]
