"""`execserver cp`: trees there and back, names of any bytes, and a box that means ill."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.box.trees import packing, tar
from execserver.box.trees.tar import BadArchive, Entry, Reader
from execserver.box.trees.unpacking import Unpacker
from tests.box.boxes import Person, mistaken
from tests.support.server_process import ServerProcess

ODD = b"a \xff\n\x1b[31m"


@pytest.fixture
def box(server: ServerProcess, person: Person) -> Person:
    """A person whose default box is the server."""
    person.environ["EXECSERVER_BOX"] = server.url
    return person


def make_tree(top: Path) -> None:
    (top / "sub" / "empty").mkdir(parents=True)
    (top / "sub" / "file").write_bytes(os.urandom(300_000))
    (top / "sub" / "none").touch()
    (top / "run").write_text("#!/bin/sh\n")
    (top / "run").chmod(0o750)
    (top / "link").symlink_to("../nowhere")
    (top / ("long" * 40)).mkdir()
    (top / ("long" * 40) / ("name" * 30)).write_text("deep")
    Path(os.fsdecode(os.fsencode(top) + b"/" + ODD)).write_text("odd")
    for number, path in enumerate([*top.rglob("*"), top]):
        os.utime(path, ns=(1, 1_600_000_000_123_456_789 + number), follow_symlinks=False)


def listing(top: Path) -> dict[bytes, tuple[object, ...]]:
    """Return what a tree is, but for the time of its top."""
    found: dict[bytes, tuple[object, ...]] = {}
    for path in top.rglob("*"):
        seen = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        name = os.fsencode(path.relative_to(top))
        found[name] = (stat.S_IFMT(seen.st_mode), stat.S_IMODE(seen.st_mode), seen.st_mtime_ns, content)
    return found


def check(person: Person, *words: str) -> None:
    done = person.run("cp", *words)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_tree_goes_there_and_back(box: Person, tmp_path: Path) -> None:
    top, there, back = tmp_path / "a tree", tmp_path / "th ere", tmp_path / "back"
    make_tree(top)
    there.mkdir()
    check(box, str(top), f":{there}")
    assert listing(there / "a tree") == listing(top)
    check(box, f":{there}/a tree", str(back))
    assert listing(back) == listing(top)
    check(box, f":{there}/a tree", str(back))  # into the folder that is there now
    assert listing(back / "a tree") == listing(top)


@pytest.mark.parametrize("tools", [(), ("sh", "cat")], ids=["no programs", "no tar"])
def test_a_box_without_tar_is_copied_to_and_from(
    tools: tuple[str, ...], person: Person, tmp_path: Path
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in tools:
        (programs / name).symlink_to(shutil.which(name) or name)
    top, there, back = tmp_path / "top", tmp_path / "there", tmp_path / "back"
    make_tree(top)
    there.mkdir()
    with ServerProcess(env=os.environ | {"PATH": str(programs)}) as server:
        person.environ["EXECSERVER_BOX"] = server.url
        check(person, str(top), f":{there}")
        check(person, f":{there}/top", str(back))
        done = person.run("cp", "-q", f":{there}/top/run", "-")
    assert listing(there / "top") == listing(back) == listing(top)
    assert (done.returncode, done.stdout) == ((0, b"#!/bin/sh\n") if tools else (127, b""))


def test_what_is_cut_is_begun_anew_or_gone_on_with(box: Person, tmp_path: Path) -> None:
    content = os.urandom(1_500_000)
    source, there, back = tmp_path / "one", tmp_path / "there", tmp_path / "back"
    source.write_bytes(content)
    for place in (there, back):
        place.mkdir()
        (place / ".one.execserver-part").write_bytes(b"of another one" * 100_000)
    check(box, "-q", str(source), f":{there}")
    check(box, "-q", f":{source}", str(back))
    for place in (there, back):
        assert {path.name: path.read_bytes() for path in place.iterdir()} == {"one": content}
        (place / "one").unlink()
        (place / ".one.execserver-part").write_bytes(content[:1_000_000])
    check(box, "-q", "--resume", str(source), f":{there}")
    check(box, "-q", "--resume", f":{source}", str(back))
    for place in (there, back):
        assert {path.name: path.read_bytes() for path in place.iterdir()} == {"one": content}


def test_what_is_no_file_is_left_out_and_told(box: Person, tmp_path: Path) -> None:
    top, there = tmp_path / "top", tmp_path / "there"
    top.mkdir()
    os.mkfifo(top / "fifo")
    (top / "file").write_text("content")
    for words in ([], ["--resume"]):
        done = box.run("cp", "-q", *words, str(top), f":{there}")
        assert (done.returncode, done.stdout) == (1, b"")
        assert done.stderr == f"execserver: left out: {top}/fifo: it is no file, folder or link\n".encode()
    assert (there / "file").read_text() == "content"


def test_one_file_that_fails_is_told_as_it_was_named(box: Person, tmp_path: Path) -> None:
    """Where a part is collected somebody has put a link: nothing goes through it."""
    source, there, other = tmp_path / "one", tmp_path / "there", tmp_path / "other"
    source.write_bytes(bytes(600_000))
    other.write_text("of another")
    there.mkdir()
    (there / ".one.execserver-part").symlink_to(other)
    done = box.run("cp", "-q", str(source), f":{there}")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == f"execserver: {source}: Symbolic link loop (os error 40)\n".encode()
    assert other.read_text() == "of another"
    assert not (there / "one").exists()


def test_what_is_no_file_on_a_box_is_left_out_and_told_in_one_line(box: Person, tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "sub").mkdir(parents=True)
    for name in ("b", "sub/c\n"):
        os.mkfifo(top / name)
    (top / "file").write_text("content")
    for number, words in enumerate(([], ["--resume"])):
        there = tmp_path / f"there{number}"
        done = box.run("cp", "-q", *words, f":{top}", str(there))
        assert (done.returncode, done.stdout) == (1, b"")
        text = f"left out: {top}/b, and 1 more that are no files, folders or links"
        assert done.stderr == f"execserver: {text}\n".encode()
        assert sorted(path.name for path in there.rglob("*")) == ["file", "sub"]


def test_one_file_gets_a_new_name_or_is_a_stream(box: Person, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"content")
    check(box, str(tmp_path / "one"), f":{tmp_path}/two")
    assert (tmp_path / "two").read_bytes() == b"content"
    done = box.run("cp", "-", f":{tmp_path}/three", stdin=b"in\0")
    assert (done.returncode, (tmp_path / "three").read_bytes()) == (0, b"in\0")
    done = box.run("cp", f":{tmp_path}/three", "-")
    assert (done.returncode, done.stdout) == (0, b"in\0")


@pytest.mark.parametrize("size", [7, 600 * 1024])
def test_a_target_that_is_no_file_is_not_replaced(box: Person, tmp_path: Path, size: int) -> None:
    one, fifo, link = tmp_path / "one", tmp_path / "fifo", tmp_path / "link"
    one.write_bytes(bytes(size))
    os.mkfifo(fifo)  # as /dev/null is, which nobody but root can make
    link.symlink_to(fifo)
    for target in (fifo, link):
        for words, way in (
            ((f":{one}", str(target)), f"execserver cp BOX:PATH - > {target}"),
            ((str(one), f":{target}"), f"execserver cp - {box.environ['EXECSERVER_BOX']}:{target} < FILE"),
        ):
            done = box.run("cp", *words)
            told = f"Error: {target} is a device, FIFO or socket, which is not replaced\n"
            assert (done.returncode, done.stderr.decode()) == (1, f"{told}  What to do: {way}\n")


@pytest.mark.parametrize("size", [7, 600 * 1024])
def test_nothing_in_a_tree_that_is_no_file_is_replaced(box: Person, tmp_path: Path, size: int) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for folder in (source, target):
        folder.mkdir()
        (folder / "plain").touch()
    (source / "odd").write_bytes(bytes(size))
    os.mkfifo(target / "odd")
    for words in ((f":{source}/odd", str(target)), (str(source / "odd"), f":{target}")):
        done = box.run("cp", *words)
        assert done.returncode == 1, done.stderr
        assert b"execserver: odd: " in done.stderr or b"/odd: " in done.stderr, done.stderr
        assert stat.S_ISFIFO((target / "odd").stat().st_mode)
    whole = {path.name for path in target.iterdir() if not path.name.endswith(".execserver-part")}
    assert whole == {"odd", "plain"}


@pytest.mark.long
def test_what_is_not_there_is_told(box: Person, tmp_path: Path) -> None:
    done = box.run("cp", f":{tmp_path}/none", str(tmp_path / "x"))
    assert done.returncode == 1
    assert f"{tmp_path}/none: No such file or directory".encode() in done.stderr
    done = box.run("cp", str(tmp_path / "none"), f":{tmp_path}")
    assert done.returncode == 1
    assert b"none: No such file or directory" in done.stderr
    done = box.run("cp", str(tmp_path), str(tmp_path), f":{tmp_path}/none")
    assert done.returncode == 1
    assert b"is no folder on" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["a", "b"],
        [":a", ":b"],
        ["a", ":b", ":c"],
        ["x:a", "y:b", "."],
        ["-", "a", ":b"],
        ["a"],
        ["", ":b"],
        [":a", ""],
    ],
)
def test_wrong_usage_exits_with_2(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert mistaken(["cp", *words], monkeypatch, capfd).startswith("error: ")


def test_an_empty_path_is_not_the_folder_one_is_in(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for words in (["cp", "", ":b"], ["cp", ":a", ""], ["sync", "--delete", "", ":b"]):
        assert mistaken(words, monkeypatch, capfd).startswith("error: a path is empty")


class Target:
    """A folder to unpack into, beside one that must stay as it is."""

    def __init__(self, top: Path) -> None:
        self.said: list[str] = []
        self.folder, self.outside = top / "in", top / "out"
        self.folder.mkdir()
        self.outside.mkdir()
        (self.outside / "kept").write_text("kept")

    def unpack(self, *items: Entry | bytes) -> None:
        unpacker = Unpacker(str(self.folder), b"x", b"x", self.said.append)
        try:
            for item in items:
                unpacker.take(item)
            unpacker.finish()
        finally:
            unpacker.close()
            assert {path.name for path in self.outside.iterdir()} == {"kept"}
            assert (self.outside / "kept").read_text() == "kept"
            assert not any(".part" in path.name for path in self.folder.rglob("*"))


@pytest.fixture
def target(tmp_path: Path) -> Target:
    """Where a box may write, and where not."""
    return Target(tmp_path)


FILE = Entry(b"x", tar.FILE, 4)


@pytest.mark.parametrize(
    "name", [b"/x", b"../x", b"x/../../out/kept", b"y", b"", b".", b"x\0y", b"x/" * 300, b"./../x", b"x/.."]
)
@pytest.mark.parametrize("kind", [tar.FILE, tar.DIRECTORY, tar.SYMLINK, tar.HARD_LINK])
def test_no_name_leads_out(target: Target, name: bytes, kind: str) -> None:
    with pytest.raises(BadArchive):
        target.unpack(Entry(name, kind, 0, target=b"x"))


def test_no_link_leads_out(target: Target) -> None:
    outside = os.fsencode(target.outside)
    top = Entry(b"x", tar.DIRECTORY, mode=0o755)
    link = Entry(b"x/l", tar.SYMLINK, target=outside)
    with pytest.raises(OSError, match="Not a directory"):
        target.unpack(top, link, Entry(b"x/l/kept", tar.FILE, 4), b"evil")
    # A file in the place of a link replaces the link.
    file = Entry(b"x/k", tar.FILE, 4)
    target.unpack(top, Entry(b"x/k", tar.SYMLINK, target=outside + b"/kept"), file, b"evil")
    assert (target.folder / "x" / "k").read_text() == "evil"
    assert not (target.folder / "x" / "k").is_symlink()
    with pytest.raises(BadArchive):
        target.unpack(top, Entry(b"x/h", tar.HARD_LINK, target=outside + b"/kept"))
    with pytest.raises(OSError, match="Not a directory"):
        target.unpack(top, Entry(b"x/h", tar.HARD_LINK, target=b"x/l/kept"))


def test_a_hard_link_to_a_link_is_not_followed(target: Target) -> None:
    top = Entry(b"x", tar.DIRECTORY, mode=0o755)
    link = Entry(b"x/l", tar.SYMLINK, target=os.fsencode(target.outside) + b"/kept")
    target.unpack(top, link, Entry(b"x/h", tar.HARD_LINK, target=b"x/l"), Entry(b"x/h", tar.FILE, 1), b"e")
    assert (target.folder / "x" / "h").read_text() == "e"


def test_devices_are_left_out_and_set_id_bits_not_taken(target: Target) -> None:
    target.unpack(Entry(b"x", tar.DIRECTORY, mode=0o7755), Entry(b"x/d", tar.OTHER))
    target.unpack(Entry(b"x", tar.DIRECTORY, mode=0o755), Entry(b"x/s", tar.FILE, 1, 0o6755), b"s")
    assert stat.S_IMODE((target.folder / "x" / "s").stat().st_mode) == 0o755
    assert stat.S_IMODE((target.folder / "x").stat().st_mode) == 0o755
    assert target.said == ["left out: x/d is no file, folder or link"]


def test_a_file_that_is_cut_leaves_nothing(target: Target) -> None:
    with pytest.raises(BadArchive, match="middle"):
        target.unpack(FILE, b"ab")
    assert list(target.folder.iterdir()) == []


def test_a_file_does_not_replace_a_fifo(target: Target) -> None:
    os.mkfifo(target.folder / "x")
    with pytest.raises(FileExistsError, match="a device, FIFO or socket is there"):
        target.unpack(FILE, b"abcd")
    assert [path.name for path in target.folder.iterdir()] == ["x"]


def test_a_file_does_not_replace_a_folder(target: Target) -> None:
    (target.folder / "x").mkdir()
    with pytest.raises(IsADirectoryError):
        target.unpack(FILE, b"abcd")


def read_all(data: bytes, step: int) -> list[Entry | bytes]:
    reader = Reader()
    return [item for at in range(0, len(data), step) for item in reader.feed(data[at : at + step])]


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=300), st.binary(max_size=700), st.integers(0, 2**62))),
    st.integers(1, 2000),
)
def test_what_is_written_is_read_again(entries: list[tuple[bytes, bytes, int]], step: int) -> None:
    archive, expected = b"", []
    for name, content, modified_ns in entries:
        entry = Entry(name.replace(b"\0", b"_"), tar.FILE, len(content), 0o640, modified_ns)
        archive += tar.header(entry) + content + bytes(tar.padding(len(content)))
        expected.append((entry, content))
    found: list[tuple[Entry, bytes]] = []
    for item in read_all(archive + tar.END, step):
        if isinstance(item, Entry):
            found.append((item, b""))
        else:
            found[-1] = (found[-1][0], found[-1][1] + item)
    assert found == expected


@given(st.binary(max_size=2000), st.integers(0, 1023), st.integers(0, 255))
def test_nonsense_is_refused_or_read_and_nothing_else(data: bytes, at: int, value: int) -> None:
    spoilt = bytearray(tar.header(Entry(b"n" * 200, tar.FILE, 5, modified_ns=5)) + b"hello" + data)
    spoilt[at] = value
    for archive in (data, bytes(spoilt)):
        try:
            assert sum(len(item) for item in read_all(archive, 512) if isinstance(item, bytes)) <= len(
                archive
            )
        except BadArchive:
            pass


def test_a_header_that_grows_is_refused() -> None:
    block = bytearray(tar.header(Entry(b"x", tar.FILE, 8**11 - 1)))
    block[156:157] = b"x"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    with pytest.raises(BadArchive, match="a header has"):
        read_all(bytes(block), 512)


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    said: list[str] = []
    assert b"".join(packing.packed(os.fsencode(tmp_path / "fifo"), b"fifo", said.append)) == b""
    assert len(said) == 1
    assert packing.size_of(os.fsencode(tmp_path)) == 0
