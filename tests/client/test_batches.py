"""Many files in one request, with the client and a real server."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

import gevent
import pytest

from execserver.client import ExecServerClient, NotFoundError, RequestFailed
from execserver.client.rules import wire
from execserver.protocol.batches import FsListEntry, FsListParams, FsNodeKind, FsWriteEntry
from execserver.protocol.files import FsWalkError
from execserver.protocol.own_methods import FS_LIST
from tests.client.test_file_changes import only
from tests.support.server_process import ServerProcess

TIME = 1_600_000_000_123_456_789
FILE, DIRECTORY, SYMLINK, ABSENT = (
    FsNodeKind.FILE,
    FsNodeKind.DIRECTORY,
    FsNodeKind.SYMLINK,
    FsNodeKind.ABSENT,
)


def file(name: bytes, content: bytes, **more: object) -> FsWriteEntry:
    return FsWriteEntry(name=name, kind=FILE, content=content, **more)  # type: ignore[arg-type]


def listed(remote: ExecServerClient, root: Path) -> dict[bytes, FsListEntry]:
    found = list(remote.files.list(root))
    return {each.name: each for each in found if not isinstance(each, FsWalkError)}


def texts(remote: ExecServerClient, root: Path, *entries: FsWriteEntry) -> list[str]:
    return [each.message for each in remote.files.write_many(root, entries)]


@pytest.fixture
def root(folder: Path) -> Path:
    """A directory to work in."""
    made = folder / "root"
    made.mkdir()
    return made


def test_a_tree_is_listed_in_pages(remote: ExecServerClient, root: Path) -> None:
    (root / "a").mkdir()
    (root / "a").chmod(0o750)
    (root / "a" / os.fsdecode(b"\xff")).write_bytes(b"12345")
    (root / "a" / "link").symlink_to("nowhere")
    os.mkfifo(root / "fifo")
    os.mkfifo(root / "a" / "b")
    os.utime(root / "a" / os.fsdecode(b"\xff"), ns=(1, TIME))
    found = listed(remote, root)
    assert list(found) == [b"", b"a", b"a/link", b"a/\xff"]
    assert (found[b"a"].kind, found[b"a"].mode) == (DIRECTORY, 0o750)
    assert (found[b"a/link"].kind, found[b"a/link"].target) == (SYMLINK, b"nowhere")
    odd = found[b"a/\xff"]
    assert (odd.kind, odd.size, odd.modified_at_ns) == (FILE, 5, TIME)
    names: list[bytes] = []
    others: list[bytes] = []
    after = None
    while True:
        params = FsListParams(path=wire.path_uri(root), after=after, max_entries=1)
        page = remote.files._session.call(FS_LIST, params)
        names += [each.name for each in page.entries]
        others += page.others
        after = page.next
        if after is None:
            break
    # Each once, though every page lists the directories above its beginning.
    assert (names, sorted(others)) == (list(found), [b"a/b", b"fifo"])
    told: list[bytes] = []
    list(remote.files.list(root, other=told.append))
    assert sorted(told) == [b"a/b", b"fifo"]
    assert [each.kind for each in remote.files.list(root / "a" / "link")] == [SYMLINK]  # type: ignore[union-attr]
    with pytest.raises(NotFoundError):
        list(remote.files.list(root / "none"))


def test_everything_is_written_with_its_attributes(remote: ExecServerClient, root: Path) -> None:
    (root / "old").write_bytes(b"old")
    (root / "gone").touch()
    assert texts(
        remote,
        root,
        FsWriteEntry(name=b"d/e", kind=DIRECTORY),
        file(b"d/e/\xff", b"content", mode=0o640, modified_at_ns=TIME),
        file(b"old", b"new"),
        FsWriteEntry(name=b"d/link", kind=SYMLINK, target=b"to \xfe", modified_at_ns=TIME),
        FsWriteEntry(name=b"gone", kind=ABSENT),
        FsWriteEntry(name=b"never/there", kind=ABSENT),
        FsWriteEntry(name=b"d/e/\xff", kind=FILE, mode=0o4600),
        FsWriteEntry(name=b"d", kind=DIRECTORY, mode=0o710, modified_at_ns=TIME),
    ) == []  # fmt: skip
    odd = root / "d" / "e" / os.fsdecode(b"\xff")
    assert odd.read_bytes() == b"content"
    assert (stat.S_IMODE(odd.stat().st_mode), odd.stat().st_mtime_ns) == (0o600, TIME)
    assert (root / "old").read_bytes() == b"new"
    assert os.readlink(os.fsencode(root / "d" / "link")) == b"to \xfe"
    assert (root / "d" / "link").lstat().st_mtime_ns == TIME
    assert (stat.S_IMODE((root / "d").stat().st_mode), (root / "d").stat().st_mtime_ns) == (0o710, TIME)
    assert not (root / "gone").exists()


def test_what_fails_is_told_and_the_rest_is_done(remote: ExecServerClient, root: Path) -> None:
    (root / "d").mkdir()
    (root / "d" / "kept").touch()
    (root / "f").touch()
    os.mkfifo(root / "fifo")
    errors = remote.files.write_many(
        root,
        [
            file(b"d", b"x"),
            FsWriteEntry(name=b"d", kind=ABSENT),
            FsWriteEntry(name=b"f", kind=DIRECTORY),
            FsWriteEntry(name=b"", kind=ABSENT),
            FsWriteEntry(name=b"l", kind=SYMLINK),
            file(b"fifo", b"x"),
            FsWriteEntry(name=b"fifo", kind=SYMLINK, target=b"f"),
            file(b"g", b"done"),
        ],
    )
    assert [each.index for each in errors] == [0, 1, 2, 3, 4, 5, 6]
    assert errors[0].message.startswith("Is a directory")
    assert errors[1].message.startswith("Directory not empty")
    assert errors[5].message == errors[6].message == "File exists (os error 17)"
    assert {path.name for path in root.iterdir()} == {"d", "f", "fifo", "g"}
    assert stat.S_ISFIFO((root / "fifo").stat().st_mode)
    with pytest.raises(NotFoundError):
        texts(remote, root / "none", file(b"x", b""))


def test_no_name_and_no_link_leads_out(remote: ExecServerClient, root: Path) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (root / "way").symlink_to(outside)
    (root / "to").symlink_to(outside / "kept")
    for name in (b"../outside/kept", b"/x", b"a/../../x", b"./x", b"x/", b"a//b", b"x\0y"):
        assert len(texts(remote, root, file(name, b"evil"), FsWriteEntry(name=name, kind=ABSENT))) == 2
        assert remote.files.read_many(root, [name])[0].error is not None
    through = [
        file(b"way/kept", b"evil"),
        file(b"way/kept", b"evil", part=b"p", size=4),
        FsWriteEntry(name=b"way/kept", kind=ABSENT),
        FsWriteEntry(name=b"way/kept", kind=FILE, mode=0o777),
        FsWriteEntry(name=b"way/d", kind=DIRECTORY),
        FsWriteEntry(name=b"way", kind=DIRECTORY, mode=0o777),
        FsWriteEntry(name=b"to", kind=FILE, mode=0o777),
        file(b"p", b"evil", part=b"../outside/kept", size=4),
        file(b"p", b"evil", part=b"to", size=9),
    ]
    assert len(texts(remote, root, *through)) == len(through)
    assert [path.name for path in outside.iterdir()] == ["kept"]
    assert (outside / "kept").read_text() == "kept"
    assert stat.S_IMODE((outside / "kept").stat().st_mode) != 0o777
    assert texts(remote, root, file(b"to", b"own"), FsWriteEntry(name=b"way", kind=ABSENT)) == []
    assert (root / "to").read_text() == "own"
    assert (outside / "kept").read_text() == "kept"


def test_a_large_file_comes_in_parts(remote: ExecServerClient, root: Path) -> None:
    def part(offset: int, content: bytes) -> list[str]:
        entry = file(b"big", content, part=b".big.part", offset=offset, size=10, modified_at_ns=TIME)
        return texts(remote, root, entry)

    assert part(4, b"x") == ["bytes are missing before offset 4"]
    assert part(0, b"0123") == []
    assert part(5, b"x") == ["bytes are missing before offset 5"]
    assert not (root / "big").exists()
    assert part(4, b"45678") == []
    assert part(4, b"45678") == []
    assert part(9, b"9") == []
    assert part(9, b"9") == []
    assert part(9, b"99") == ["`content` is beyond `size`"]
    assert (root / "big").read_bytes() == b"0123456789"
    assert [path.name for path in root.iterdir()] == ["big"]


def test_a_piece_goes_by_itself_as_an_entry_does(remote: ExecServerClient, root: Path) -> None:
    def add(name: bytes, content: bytes, offset: int = 0, part: bytes = b"p") -> None:
        entry = file(name, content, part=part, offset=offset, size=6, mode=0o640, modified_at_ns=TIME)
        remote.files.write_parts(root, [entry])

    outside = root.parent / "outside"
    outside.write_text("kept")
    (root / "link").symlink_to(outside)
    (root / "way").symlink_to(root.parent)
    add(b"d/big", b"012")
    assert [path.name for path in (root / "d").iterdir()] == ["p"]
    add(b"d/big", b"345", 3)
    big = root / "d" / "big"
    assert (big.read_bytes(), stat.S_IMODE(big.stat().st_mode), big.stat().st_mtime_ns) == (
        *(b"012345", 0o640, TIME),
    )
    for name, offset, part in (
        *((b"../outside", 0, b"p"), (b"way/outside", 0, b"p")),
        *((b"x", 0, b"link"), (b"x", 0, b"../outside"), (b"x", 0, b""), (b"x", 5, b"p")),
    ):
        with pytest.raises(RequestFailed):
            add(name, b"ev", offset, part)
    assert outside.read_text() == "kept"
    with pytest.raises(NotFoundError):
        remote.files.write_parts(root / "none", [file(b"x", b"", part=b"p", size=1)])


@pytest.mark.parametrize("confined", [False, True], ids=["plain", "sandboxed"])
def test_of_two_clients_that_write_one_file_the_last_to_begin_goes_on(
    server: ServerProcess, remote: ExecServerClient, root: Path, confined: bool
) -> None:
    if confined and not remote.environment_sandbox().native:
        pytest.skip("no sandbox root can be made here")
    rules = only(root) if confined else None

    def add(client: ExecServerClient, content: bytes, offset: int) -> None:
        entry = file(b"big", content, part=b".part", offset=offset, size=4, modified_at_ns=TIME)
        client.files.write_parts(root, [entry], sandbox=rules)

    with ExecServerClient.connect(server.url) as other:
        add(remote, b"aa", 0)
        add(other, b"bb", 0)
        with pytest.raises(RequestFailed, match="another copy has begun to write this file"):
            add(remote, b"aa", 2)
        add(other, b"bb", 2)
    assert ((root / "big").read_bytes(), os.listdir(root)) == (b"bbbb", ["big"])


@pytest.mark.parametrize("confined", [False, True], ids=["plain", "sandboxed"])
def test_a_piece_waits_for_what_is_being_written_to_its_part_and_the_last_may_come_again(
    remote: ExecServerClient, root: Path, confined: bool
) -> None:
    if confined and not remote.environment_sandbox().native:
        pytest.skip("no sandbox root can be made here")
    rules = only(root) if confined else None

    def add(content: bytes, offset: int) -> None:
        entry = file(b"big", content, part=b".part", offset=offset, size=4, modified_at_ns=TIME)
        remote.files.write_parts(root, [entry], sandbox=rules)

    add(b"aa", 0)
    # As a piece does that a lost connection has left behind in the server.
    with (root / ".part").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = gevent.spawn(add, b"bb", 2)
        waiting.join(0.2)
        assert not waiting.dead
    waiting.get(timeout=30)
    add(b"bb", 2)
    assert ((root / "big").read_bytes(), os.listdir(root)) == (b"aabb", ["big"])


def test_files_are_read_until_the_answer_is_full(remote: ExecServerClient, root: Path) -> None:
    for name, size in (("a", 5), ("b", 700_000), ("c", 700_000), ("d", 1_100_000)):
        (root / name).write_bytes(name.encode() * size)
    found = remote.files.read_many(root, [b"a", b"none", b"d", b"b", b"c"])
    assert [None if each.content is None else len(each.content) for each in found] == [5, None, None, 700_000]
    assert found[1].error == "No such file or directory (os error 2)"
    assert found[2].error == "more than 1048576 bytes: read it in blocks"


def test_a_sandbox_holds_for_many_files(remote: ExecServerClient, tmp_path: Path) -> None:
    report = remote.environment_sandbox()
    if not report.native:
        blockers = [f"{each.name}: {each.blocker}" for each in report.checks if not each.works]
        pytest.skip(f"no sandbox root can be made here: {'; '.join(blockers)}")
    folder = tmp_path / "in"
    (folder / "hidden").mkdir(parents=True)
    (folder / "hidden" / "secret").write_text("a secret word")
    (folder / "kept").write_text("kept")
    (folder / "way").symlink_to("hidden/secret")
    os.mkfifo(folder / "pipe")
    rules = only(folder)
    others: list[bytes] = []
    found = list(remote.files.list(folder, other=others.append, sandbox=rules))
    assert others == [b"pipe"]
    entries = {each.name: each for each in found if isinstance(each, FsListEntry)}
    assert (entries[b"way"].kind, entries[b"way"].target) == (SYMLINK, b"hidden/secret")
    assert b"hidden/secret" not in entries
    assert all(each.content is None for each in remote.files.read_many(folder, [b"way"], sandbox=rules))
    good = [
        file(b"d/new", b"new", mode=0o640, modified_at_ns=TIME),
        FsWriteEntry(name=b"d/link", kind=SYMLINK, target=b"x"),
        file(b"big", b"01", part=b"p", size=4),
        file(b"big", b"23", part=b"p", offset=2, size=4, mode=0o600),
        FsWriteEntry(name=b"d", kind=DIRECTORY, mode=0o750, modified_at_ns=TIME),
        FsWriteEntry(name=b"way", kind=ABSENT),
    ]
    assert [each.message for each in remote.files.write_many(folder, good, sandbox=rules)] == []
    new = folder / "d" / "new"
    assert (new.read_text(), stat.S_IMODE(new.stat().st_mode), new.stat().st_mtime_ns) == ("new", 0o640, TIME)
    assert (folder / "d").stat().st_mtime_ns == TIME
    assert (folder / "big").read_text() == "0123"
    bad = [
        file(b"kept", b"evil"),
        file(b"kept", b"evil", part=b"q", size=4),
        file(b"hidden/new", b"evil"),
        FsWriteEntry(name=b"kept", kind=ABSENT),
        FsWriteEntry(name=b"hidden/secret", kind=ABSENT),
    ]
    assert len(remote.files.write_many(folder, bad, sandbox=rules)) == len(bad)
    for entry in bad[1:3]:
        with pytest.raises(RequestFailed):
            remote.files.write_parts(folder, [entry], sandbox=rules)
    assert (folder / "kept").read_text() == "kept"
    assert {path.name for path in (folder / "hidden").iterdir()} == {"secret"}
    assert {path.name for path in folder.iterdir()} == {"big", "d", "hidden", "kept", "pipe", "q"}
