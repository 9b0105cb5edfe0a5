"""fs/* with a sandbox that restricts: what is answered, and what is done, as root and as an ordinary user."""

from __future__ import annotations

import os

import pytest

from tests.e2e.sandbox_places import Place
from tests.e2e.sandboxed_calls import NOT_THERE, READ_ONLY, REFUSED, Files, only
from tests.support.peer import Json, RemoteError
from tests.support.sandboxes import context, managed, read_only, rule, special, workspace_write

pytestmark = pytest.mark.ours_only("the reference starts its helper and bubblewrap for each call")


@pytest.fixture
def ws(place: Place) -> Files:
    """Files under the workspace preset."""
    return Files(place, workspace_write(place.ws))


@pytest.fixture
def ro(place: Place) -> Files:
    """Files under the read-only preset."""
    return Files(place, read_only(place.ws))


@pytest.fixture
def narrow(place: Place) -> Files:
    """Files where only the workspace is granted, for writing."""
    return Files(place, only(place, place.ws, "write"))


# --- the captures of the contract --------------------------------------------------------------------------


def test_the_workspace_preset_reads_all_and_writes_the_workspace(place: Place, ws: Files) -> None:
    assert ws.read(place.ws / "f") == b"in"
    assert ws.read(place.other / "f") == b"out"
    assert ws.write(place.ws / "n") == {}
    assert (place.ws / "n").read_bytes() == b"written"
    assert ws.write(place.other / "n") == READ_ONLY
    place.make("ws/.git/config")
    assert ws.write(place.ws / ".git" / "n") == READ_ONLY
    assert ws.ask("fs/createDirectory", place.ws / ".agents" / "x") == READ_ONLY
    assert sorted(os.listdir(place.ws)) == [".git", "f", "n"]
    assert os.listdir(place.other) == ["f"]


def test_the_read_only_preset_writes_nothing(place: Place, ro: Files) -> None:
    assert ro.read(place.ws / "f") == b"in"
    for answer in (
        ro.write(place.ws / "f"),
        ro.write(place.ws / "n"),
        ro.write_opened(place.ws / "f"),
        ro.ask("fs/createDirectory", place.ws / "d"),
        ro.ask("fs/remove", place.ws / "f"),
        ro.copy(place.ws / "f", place.ws / "g"),
    ):
        assert answer == READ_ONLY
    assert (place.ws / "f").read_text() == "in"
    assert os.listdir(place.ws) == ["f"]


def test_a_narrow_policy_shows_nothing_else(place: Place, narrow: Files) -> None:
    (place.ws / "link-to-out").symlink_to(place.other / "f")
    assert narrow.read(place.other / "f") == NOT_THERE
    assert narrow.write(place.other / "n") == NOT_THERE
    assert narrow.write(place.ws / "n") == {}
    assert narrow.read(place.ws / "link-to-out") == NOT_THERE
    assert narrow.ask("fs/readDirectory", place.other) == NOT_THERE
    assert narrow.names(place.ws) == ["f", "n"]  # links that lead nowhere are left out


def test_a_denied_folder_refuses(place: Place) -> None:
    files = Files(place, read_only(place.ws, rule(place.other, "none")))
    assert files.read(place.other / "f") == REFUSED
    assert files.ask("fs/readDirectory", place.other) == REFUSED
    assert files.write(place.other / "n") == REFUSED
    assert files.copy(place.other / "f", place.ws / "g") == REFUSED
    assert files.read_opened(place.other / "f") == REFUSED


def test_a_denied_file_refuses_and_tells_its_metadata(place: Place) -> None:
    files = Files(place, read_only(place.ws, rule(place.other / "f", "deny")))
    assert files.read(place.other / "f") == REFUSED
    found = files.ask("fs/getMetadata", place.other / "f")
    assert (found["isFile"], found["size"]) == (True, 0)
    assert files.names(place.other) == ["f"]


# --- the reference's own cases -----------------------------------------------------------------------------


def test_a_link_to_a_folder_is_resolved(place: Place, ws: Files) -> None:
    (place.ws / "link").symlink_to(place.ws)
    for files in (ws, Files(place, only(place, place.ws, "read"))):
        assert files.ask("fs/canonicalize", place.ws / "link") == {"path": f"file://{place.ws}"}


def test_metadata_of_a_link_is_its_targets(place: Place, ws: Files) -> None:
    (place.ws / "link").symlink_to("f")
    found = ws.ask("fs/getMetadata", place.ws / "link")
    assert [found[name] for name in ("isFile", "isDirectory", "isSymlink", "size")] == [True, False, True, 2]


def test_a_readable_folder_is_not_written(place: Place) -> None:
    files = Files(place, only(place, place.folder, "read"))
    assert files.write(place.folder / "blocked.txt") == READ_ONLY
    assert not (place.folder / "blocked.txt").exists()


def test_links_lead_nowhere_out_of_what_is_granted(place: Place) -> None:
    place.make("ws/allowed/own")
    (place.ws / "allowed" / "link").symlink_to(place.other)
    allowed = place.ws / "allowed"
    reader, writer = (Files(place, only(place, allowed, access)) for access in ("read", "write"))
    assert reader.read(allowed / "link" / "f") == NOT_THERE
    assert reader.read(f"{allowed}/link/../f") == NOT_THERE
    assert reader.ask("fs/readDirectory", allowed / "link") == NOT_THERE
    assert writer.write(allowed / "link" / "blocked.txt") == NOT_THERE
    assert writer.ask("fs/createDirectory", allowed / "link" / "d") in (
        NOT_THERE,
        (-32603, "File exists (os error 17)"),
    )
    assert writer.copy(allowed / "own", allowed / "link" / "x") == NOT_THERE
    assert writer.copy(allowed / "link" / "f", allowed / "taken") == NOT_THERE
    assert writer.ask("fs/remove", allowed / "link" / "f", force=False) == NOT_THERE
    assert writer.copy(allowed / "link", allowed / "copied") == {}
    assert os.readlink(allowed / "copied") == str(place.other)
    assert writer.ask("fs/remove", allowed / "link") == {}
    assert os.listdir(place.other) == ["f"]
    assert sorted(os.listdir(allowed)) == ["copied", "own"]


def test_an_existing_hard_link_is_written_through(place: Place, ws: Files) -> None:
    os.link(place.other / "f", place.ws / "hard")
    assert ws.write(place.ws / "hard", b"new") == {}
    assert (place.other / "f").read_bytes() == b"new"
    assert os.stat(place.other / "f").st_ino == os.stat(place.ws / "hard").st_ino


def test_an_additional_root_is_written(place: Place) -> None:
    files = Files(place, context(managed(rule(place.ws, "read"), rule(place.other, "write")), place.ws))
    assert files.read(place.ws / "f") == b"in"
    found = files.ask("fs/getMetadata", place.ws / "f")
    assert found["isFile"] is True
    assert files.write(place.ws / "n") == READ_ONLY
    assert files.write(place.other / "n") == {}


def test_a_root_named_through_a_link_is_written(place: Place) -> None:
    (place.folder / "alias").symlink_to(place.ws)
    files = Files(place, only(place, place.folder / "alias", "write"))
    assert files.write(place.folder / "alias" / "n") in ({}, NOT_THERE)
    assert files.write(place.ws / "n") == {}


def test_workspace_roots_are_the_project(place: Place) -> None:
    sandbox = context(
        managed(special("root", "read"), special("project_roots", "write")),
        place.ws,
        workspaceRoots=[f"file://{place.other}"],
    )
    files = Files(place, sandbox)
    assert files.write(place.other / "n") == {}
    assert files.write(place.ws / "n") == READ_ONLY


def test_what_is_not_this_kind_of_hosts_is_refused(place: Place, ws: Files) -> None:
    with pytest.raises(RemoteError, match="'file://server/x' is invalid on 'linux'"):
        place.peer.call("fs/readFile", {"path": "file://server/x", "sandbox": ws.sandbox})
    rules = managed(
        special("root", "read"), {"path": {"type": "path", "path": "file://h/x"}, "access": "read"}
    )
    foreign = Files(place, context(rules, place.ws))
    code, text = foreign.read(place.ws / "f")
    assert (code, text) == (-32600, "invalid sandbox permission path URI: 'file://h/x' is invalid on 'linux'")
    dynamic = Files(place, context(managed(special("project_roots", "write"))))
    code, text = dynamic.read(place.ws / "f")
    assert text == "file system sandbox context with dynamic permissions requires cwd"
    gone = Files(place, workspace_write(place.folder / "gone"))
    assert gone.read(place.ws / "f") == (-32603, "No such file or directory (os error 2)")


def test_the_policies_of_older_clients_are_their_presets(place: Place) -> None:
    def policy(**members: Json) -> Files:
        return Files(
            place, {"sandboxPolicy": members, "windowsSandboxLevel": "disabled", "cwd": f"file://{place.ws}"}
        )

    reader, writer = policy(type="read-only"), policy(type="workspace-write", exclude_slash_tmp=True)
    assert reader.read(place.other / "f") == b"out"
    assert reader.write(place.ws / "n") == READ_ONLY
    assert writer.write(place.ws / "n") == {}
    assert writer.write(place.ws / ".git" / "n") == READ_ONLY
    assert policy(type="danger-full-access").write(place.other / "n") == {}


# --- every operation ---------------------------------------------------------------------------------------


def test_all_operations_work_where_they_are_granted(place: Place, ws: Files) -> None:
    base = place.ws / "new"
    assert ws.ask("fs/createDirectory", base / "a" / "b") == {}
    assert ws.write(base / "a" / "f", b"x" * 300_000) == {}
    assert ws.read(base / "a" / "f") == b"x" * 300_000
    assert ws.write(base / "a" / "f", b"") == {}
    assert ws.read(base / "a" / "f") == b""
    assert ws.write_opened(base / "a" / "g", b"block") == {}
    assert ws.read_opened(base / "a" / "g") == b"block"
    assert ws.copy(base / "a", base / "c", recursive=True) == {}
    assert ws.names(base / "c") == ["b", "f", "g"]
    options = {
        "maxDepth": 5,
        "maxDirectories": 100,
        "maxEntries": 100,
        "followDirectorySymlinks": False,
        "pruneHiddenDirectories": False,
    }
    walked = ws.ask("fs/walk", base, options=options)
    assert [entry["path"].removeprefix(f"file://{base}") for entry in walked["entries"]] == [
        *("/a", "/c", "/a/b", "/a/f", "/a/g", "/c/b", "/c/f", "/c/g")
    ]
    assert (walked["errors"], walked["truncated"]) == ([], False)
    assert ws.ask("fs/remove", base) == {}
    assert not base.exists()


def test_many_names_are_listed_whole(place: Place, ro: Files) -> None:
    names = sorted(f"{'n' * 60}{number}" for number in range(3000))
    (place.ws / "many").mkdir()
    for name in names:
        (place.ws / "many" / name).touch()
    place.own()
    assert ro.names(place.ws / "many") == names


def test_a_handle_outlives_the_sandbox_it_was_opened_in(place: Place, ro: Files) -> None:
    ro.ask("fs/open", place.ws / "f", handleId="h")
    (place.ws / "f").unlink()
    assert ro.read(place.ws / "f") == NOT_THERE
    block = place.peer.call("fs/readBlock", {"handleId": "h", "offset": 0, "len": 10})
    assert block == {"chunk": "aW4=", "eof": True}
    ro.close()


def test_texts_of_the_contract_are_kept(place: Place, ws: Files) -> None:
    (place.ws / "d").mkdir()
    place.own()
    assert ws.read(place.ws / "d") == (-32600, f"path `{place.ws}/d` is not a file")
    assert ws.copy(place.ws / "d", place.ws / "e") == (
        -32600,
        "fs/copy requires recursive: true when sourcePath is a directory",
    )
    assert ws.copy(place.ws / "d", place.ws / "d" / "e", recursive=True) == (
        -32600,
        "fs/copy cannot copy a directory to itself or one of its descendants",
    )
    assert ws.copy(place.ws / "f", place.ws / "f") == (
        -32600,
        f"fs/copy cannot copy the file `{place.ws}/f` onto itself",
    )
    assert ws.ask("fs/createDirectory", place.ws / "f" / "x") == (-32603, "Not a directory (os error 20)")
    assert ws.ask("fs/remove", place.ws / "none") == {}
    assert ws.ask("fs/remove", place.ws / "none", force=False) == NOT_THERE
