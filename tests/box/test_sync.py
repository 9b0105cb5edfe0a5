"""`execserver sync` and `cp --resume`: only what differs travels, and nothing is written elsewhere."""

from __future__ import annotations

import errno
import itertools
import json
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from execserver.box.transfer import comparing
from execserver.box.transfer.changes import Hopeless, check_hope
from execserver.box.transfer.comparing import Plan
from execserver.box.transfer.download import Download
from execserver.box.transfer.report import Report
from execserver.box.transfer.syncing import Manner, Sync
from execserver.box.transfer.upload import Upload
from execserver.box.trees.nodes import Excluded, Kind, Node, TooLarge
from execserver.box.trees.others import Others
from execserver.box.trees.there import BoxTree, add
from execserver.client import ExecServerClient, ProtocolViolation
from execserver.leaving import Leave
from execserver.protocol.batches import FsListEntry, FsNodeKind, FsReadManyFile
from execserver.protocol.files import FsWalkError
from execserver.protocol.paths import PathUri
from tests.box.boxes import Person, mistaken
from tests.box.test_cp import listing, make_tree
from tests.client.conftest import the_hub_settles as the_hub_settles
from tests.support.server_process import ServerProcess

BIG = os.urandom(1024) * 3000  # three pieces


@pytest.fixture
def client(server: ServerProcess) -> Iterator[ExecServerClient]:
    """A client of the box."""
    with ExecServerClient.connect(server.url) as client:
        yield client


class Pair:
    """Two folders, one of which is on the box, though both can be seen here."""

    def __init__(self, client: ExecServerClient, top: Path, *, up: bool) -> None:
        self.source, self.target = top / "source", top / "target"
        self.source.mkdir()
        self._client = client
        self._up = up
        self.report = Report("source", lines=True, dry=False, quiet=True)

    def sync(self, manner: Manner | None = None) -> int:
        """Sync once."""
        manner = manner or Manner()
        self.report = Report("source", lines=True, dry=manner.dry, quiet=True)
        sides = (os.fsencode(self.source), os.fsencode(self.target))
        here, there = sides if self._up else sides[::-1]
        return Sync(self._client, here, there, self.report, manner, up=self._up).run()


@pytest.fixture(params=[True, False], ids=["up", "down"])
def pair(request: pytest.FixtureRequest, client: ExecServerClient, tmp_path: Path) -> Pair:
    """A pair of folders, in each direction."""
    return Pair(client, tmp_path, up=request.param)


def steps(capfd: pytest.CaptureFixture[str]) -> list[tuple[str, str]]:
    """Return what was done to what, and the summary without its zeros."""
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    return [(each["action"], each.get("path", "")) for each in lines if each["action"] != "summary"]


def test_a_tree_becomes_the_same_and_then_nothing_travels(
    pair: Pair, capfd: pytest.CaptureFixture[str]
) -> None:
    make_tree(pair.source)
    (pair.source / "big").write_bytes(BIG)
    os.utime(pair.source, ns=(1, 10**18))
    assert pair.sync() == 0
    assert listing(pair.target) == listing(pair.source)
    assert pair.target.stat().st_mtime_ns == 10**18
    capfd.readouterr()
    assert pair.sync() == 0
    assert steps(capfd) == []
    assert pair.sync(Manner(checksum=True)) == 0
    assert steps(capfd) == []


def test_only_what_differs_is_done(pair: Pair, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("same", "longer", "touched", "changed", "mode"):
        (pair.source / name).write_text("text")
    (pair.source / "link").symlink_to("same")
    pair.sync()
    (pair.source / "longer").write_text("text and more")
    os.utime(pair.source / "touched", ns=(1, 10**18))
    (pair.source / "changed").write_text("TEXT")
    os.utime(pair.source / "changed", ns=(1, 10**18))
    (pair.source / "mode").chmod(0o640)
    (pair.source / "link").unlink()
    (pair.source / "link").symlink_to("longer")
    (pair.target / "mine").write_text("stays")
    capfd.readouterr()
    assert pair.sync(Manner(dry=True)) == 0
    would = steps(capfd)
    assert (pair.target / "longer").read_text() == "text"
    assert pair.sync() == 0
    assert steps(capfd) == would
    assert set(would) == {
        *(("copy", "longer"), ("copy", "changed"), ("link", "link")),
        *(("set", "touched"), ("set", "mode"), ("set", "")),
    }
    assert (pair.target / "mine").read_text() == "stays"
    (pair.target / "mine").unlink()
    assert listing(pair.target) == listing(pair.source)


def test_equal_size_and_time_hide_a_change_but_for_checksum(pair: Pair) -> None:
    for folder, text in ((pair.source, "new"), (pair.target, "old")):
        folder.mkdir(exist_ok=True)
        (folder / "f").write_text(text)
        os.utime(folder / "f", ns=(1, 10**18))
    pair.sync()
    assert (pair.target / "f").read_text() == "old"
    pair.sync(Manner(checksum=True))
    assert (pair.target / "f").read_text() == "new"


def test_delete_removes_the_rest_and_changes_kinds(pair: Pair, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    for name in ("a/b/file", "x/in", "y/in", "skip/in", "p"):
        (pair.target / name).parent.mkdir(parents=True, exist_ok=True)
        (pair.target / name).write_text("old")
    (pair.target / "way").symlink_to(outside)
    (pair.target / "z").symlink_to(outside)
    (pair.source / "x").write_text("a file now")
    (pair.source / "y").symlink_to("elsewhere")
    (pair.source / "p").mkdir()
    (pair.source / "z").mkdir()
    (pair.source / "z" / "new").write_text("new")
    assert pair.sync(Manner(exclude=("skip",))) == 1
    assert pair.report.failed_names == {b"x", b"y", b"p", b"z"}
    assert (pair.target / "a" / "b" / "file").exists()
    assert pair.sync(Manner(delete=True, exclude=("skip",))) == 0
    assert (pair.target / "skip" / "in").read_text() == "old"
    assert {path.name for path in outside.iterdir()} == {"kept"}
    del_skip = {name: what for name, what in listing(pair.target).items() if not name.startswith(b"skip")}
    assert del_skip == listing(pair.source)


def test_an_empty_or_missing_source_deletes_nothing(pair: Pair) -> None:
    pair.target.mkdir()
    (pair.target / "kept").touch()
    with pytest.raises(Leave, match="the source is empty"):
        pair.sync(Manner(delete=True))
    pair.source.rmdir()
    with pytest.raises(Leave, match="source: No such file or directory"):
        pair.sync(Manner(delete=True))
    pair.source.write_text("a file")
    assert pair.sync(Manner(delete=True)) == 1
    assert (pair.target / "kept").exists()


def test_what_was_cut_is_gone_on_with(pair: Pair, capfd: pytest.CaptureFixture[str]) -> None:
    (pair.source / "big").write_bytes(BIG)
    pair.target.mkdir()
    part = pair.target / ".big.execserver-part"
    part.write_bytes(BIG[:1_500_000])
    before = part.stat().st_ino
    assert pair.sync(Manner(delete=True)) == 0
    assert (pair.target / "big").read_bytes() == BIG
    assert (pair.target / "big").stat().st_ino == before
    (pair.target / "big").unlink()
    part.write_bytes(b"of another file" * 9)
    capfd.readouterr()
    assert pair.sync() == 0
    assert "is of another file; it is copied anew" in capfd.readouterr().err
    assert (pair.target / "big").read_bytes() == BIG
    assert [path.name for path in pair.target.iterdir()] == ["big"]
    part.write_bytes(b"of a file that is gone")
    (pair.source / "big").rename(pair.source / "other")
    assert pair.sync(Manner(delete=True)) == 0
    assert [path.name for path in pair.target.iterdir()] == ["other"]


def test_one_file_is_synced_and_gone_on_with_too(pair: Pair) -> None:
    pair.source.rmdir()
    pair.source.write_text("text")
    assert pair.sync() == 0
    assert pair.target.read_text() == "text"
    pair.source.write_bytes(BIG)
    part = pair.target.with_name(".target.execserver-part")
    part.write_bytes(BIG[:1000])
    before = part.stat().st_ino
    assert pair.sync() == 0
    assert (pair.target.read_bytes(), pair.target.stat().st_ino) == (BIG, before)


def test_folders_that_may_not_be_written_to_are_filled(pair: Pair) -> None:
    (pair.source / "d").mkdir(mode=0o700)
    for name in ("first", "second"):
        (pair.source / "d").chmod(0o700)
        (pair.source / "d" / name).write_text(name)
        (pair.source / "d").chmod(0o500)
        assert pair.sync() == 0
        assert listing(pair.target) == listing(pair.source)


@pytest.mark.parametrize("up", [True, False], ids=["up", "down"])
def test_what_is_gone_meanwhile_is_nobodys_failure(
    client: ExecServerClient, tmp_path: Path, up: bool
) -> None:
    plan = Plan(files=[b"small", b"large"])
    source = {b"small": Node(Kind.FILE, 1), b"large": Node(Kind.FILE, len(BIG))}
    report = Report("source", lines=True, dry=False, quiet=True)
    top = os.fsencode(tmp_path)
    box = BoxTree(client, top)
    if up:
        Upload(top, box, report, resumes=True).apply(plan, source, {})
    else:
        download = Download(box, top, report, resumes=True)
        download.apply(plan, source, {})
        download.close()
    assert (report.failures, report.failed_names) == (0, {b"small", b"large"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [b"../x", b"/x", b"a/../x", b"./x", b"a//b", b"x/", b"x\0y", b"a/" * 300])
def test_names_that_lead_out_end_the_listing(name: bytes) -> None:
    entry = FsListEntry(name=name, kind=FsNodeKind.FILE, size=1, modified_at_ns=0, mode=0o600)
    with pytest.raises(ProtocolViolation):
        add({}, entry, Excluded(()), keep_parts=False)


class Lying:
    """A box that lists what cannot be, and sends more than it has listed."""

    def read(self, names: Sequence[bytes]) -> tuple[FsReadManyFile, ...]:
        """Return a content for every name."""
        return tuple(FsReadManyFile(content=b"evil") for _ in names)


def test_a_lying_box_writes_nowhere_else(tmp_path: Path) -> None:
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (outside / "kept").chmod(0o600)
    link = Node(Kind.LINK, target=os.fsencode(outside))
    file, folder = Node(Kind.FILE, 4, 0o6777), Node(Kind.FOLDER, 0, 0o777)
    source = {b"": folder, b"l": link, b"l/kept": file, b"l/new": file, b"l/d": folder, b"ok": file}
    plan = comparing.plan(source, {}, (), (), delete=False)
    plan.removals = [b"l/kept"]
    plan.stamps = [b"l/kept"]
    report = Report("source", lines=True, dry=False, quiet=True)
    download = Download(
        Lying(),  # type: ignore[arg-type]
        os.fsencode(target),
        report,
        resumes=True,
    )
    try:
        download.apply(plan, source, {})
    finally:
        download.close()
    assert [path.name for path in outside.iterdir()] == ["kept"]
    assert ((outside / "kept").read_text(), (outside / "kept").stat().st_mode & 0o777) == ("kept", 0o600)
    assert (target / "ok").stat().st_mode & 0o7777 == 0o777
    assert report.failures > 0


def test_a_listing_without_end_is_given_up(
    client: ExecServerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = FsWalkError(path=PathUri.from_native(b"/x\x1b"), message="no\x1b[31m")
    monkeypatch.setattr(client.files, "list", lambda path, other: itertools.repeat(error))
    said: list[str] = []
    with pytest.raises(TooLarge):
        BoxTree(client, os.fsencode(tmp_path)).tree(Excluded(()), said.append, Others(), keep_parts=True)
    assert set(said) == {"/x\\x1b: no\\x1b[31m"}


@pytest.mark.parametrize("delete", [False, True])
def test_what_is_no_file_is_told_in_one_line_and_is_no_failure(
    pair: Pair, capfd: pytest.CaptureFixture[str], delete: bool
) -> None:
    for name in ("b", "a/c", "skipped", "kept"):
        (pair.source / name).parent.mkdir(exist_ok=True)
        os.mkfifo(pair.source / name)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(pair.source / "a" / "socket"))
    (pair.source / "a" / "file").write_text("content")
    pair.target.mkdir()
    os.mkfifo(pair.target / "there")
    (pair.target / "old").write_text("old")
    assert pair.sync(Manner(delete=delete, exclude=("skipped",))) == 0
    (told,) = capfd.readouterr().err.splitlines()
    first = {f"execserver: left out: {pair.source}/{name}" for name in ("a/c", "a/socket", "b", "kept")}
    assert told.removesuffix(", and 3 more that are no files, folders or links") in first
    assert (pair.target / "a" / "file").read_text() == "content"
    assert (pair.target / "old").exists() is not delete
    assert (pair.target / "there").exists()


def test_a_full_disk_ends_the_work() -> None:
    for error in (OSError(errno.ENOSPC, "x"), "No space left on device (os error 28)"):
        with pytest.raises(Hopeless):
            check_hope(error)
    check_hope(OSError(errno.EACCES, "x"))
    check_hope("Permission denied (os error 13)")


def test_a_part_that_is_a_link_is_not_written_through(client: ExecServerClient, tmp_path: Path) -> None:
    pair = Pair(client, tmp_path, up=False)
    (pair.source / "big").write_bytes(BIG)
    pair.target.mkdir()
    (tmp_path / "outside").write_text("kept")
    (pair.target / ".big.execserver-part").symlink_to(tmp_path / "outside")
    assert pair.sync() == 0
    assert (pair.target / "big").read_bytes() == BIG
    assert (tmp_path / "outside").read_text() == "kept"


def test_what_cannot_be_read_stops_deleting_only(client: ExecServerClient, tmp_path: Path) -> None:
    pair = Pair(client, tmp_path, up=False)
    (pair.source / Path("d/" * 66)).mkdir(parents=True)  # deeper than a box lists
    (pair.source / "f").write_text("f")
    pair.target.mkdir()
    (pair.target / "mine").touch()
    assert pair.sync(Manner(delete=True)) == 1
    assert (pair.target / "mine").exists()
    assert (pair.target / "f").read_text() == "f"


@pytest.fixture
def box(server: ServerProcess, person: Person) -> Person:
    """A person whose default box is the server."""
    person.environ["EXECSERVER_BOX"] = server.url
    return person


def test_a_person_sees_what_would_be_done_escaped(box: Person, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a\x1b[31m\n").write_text("text")
    (source / "link").symlink_to("to\x1b]0;x")
    done = box.run("sync", "-n", str(source), f":{tmp_path}/target")
    assert done.stdout.decode().splitlines() == [
        "mkdir   .",
        "copy    a\\x1b[31m\\x0a",
        "link    link -> to\\x1b]0;x",
        "2 files (4 B) would be copied, 0 would be deleted; 0 were equal",
    ]
    assert (done.returncode, (tmp_path / "target").exists()) == (0, False)
    done = box.run("sync", str(source), f":{tmp_path}/target")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b"2 files (4 B) copied, 0 deleted; 0 were equal\n"
    assert listing(tmp_path / "target") == listing(source)


def test_a_folder_that_cannot_be_made_is_told_once(box: Person, tmp_path: Path) -> None:
    (tmp_path / "from" / "sub").mkdir(parents=True)
    for words in ([f"{tmp_path}/from", ":/proc/none"], [f":{tmp_path}/from", "/proc/none"]):
        done = box.run("sync", *words)
        assert (done.returncode, len(done.stderr.splitlines()), b"; 2 failed" in done.stdout) == (1, 2, True)


def test_cp_resumes_trees_and_files(box: Person, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "tree" / "big").write_bytes(BIG)
    (tmp_path / "tree" / "small").write_text("small")
    os.utime(tmp_path / "tree", ns=(1, 10**18))
    done = box.run("cp", "--resume", "-q", f"{tmp_path}/tree", f":{tmp_path}/there")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert listing(tmp_path / "there" / "tree") == listing(tmp_path / "tree")
    part = tmp_path / ".back.execserver-part"
    part.write_bytes(BIG[:100])
    done = box.run("cp", "--resume", "-q", f":{tmp_path}/there/tree/big", f"{tmp_path}/back")
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "back").read_bytes() == BIG
    assert not part.exists()


@pytest.mark.parametrize(
    "words",
    [
        *(["sync", "a", "b"], ["sync", ":a", ":b"], ["sync", "a", "b", ":c"], ["sync", "a"]),
        *(["sync", "--watch", "-n", "a", ":b"], ["cp", "--resume", "-", ":b"], ["cp", "--resume", ":b", "-"]),
    ],
)
def test_wrong_usage_exits_with_2(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert mistaken(words, monkeypatch, capfd).startswith("error: ")
