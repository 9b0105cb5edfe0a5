"""`execserver find` and `grep`: names of any bytes, the statuses of `grep`, and a box that means ill."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from execserver.box.files.answers import Root
from execserver.box.files.finding import any_of
from execserver.client.errors import ProtocolViolation
from execserver.protocol.paths import PathUri
from tests.box.boxes import Person, mistaken
from tests.support.server_process import ServerProcess

ODD = b"odd\xff\n\x1b[31m"


@pytest.fixture
def box(server: ServerProcess, person: Person, tmp_path: Path) -> Person:
    """A person whose default box is the server, with a tree there."""
    person.environ["EXECSERVER_BOX"] = server.url
    top = tmp_path / "top"
    (top / "sub").mkdir(parents=True)
    (top / "one.py").write_text("first\n\tsecond \x1b[2J\nSecond\n")
    (top / "sub" / "two.txt").write_text("second\n")
    (top / ".hidden").write_text("second\n")
    (top / "built.o").write_text("second\n")
    (top / ".gitignore").write_text("*.o\n")
    Path(os.fsdecode(os.fsencode(top) + b"/" + ODD)).touch()
    return person


def test_names_go_out_byte_for_byte(box: Person, tmp_path: Path) -> None:
    top = os.fsencode(tmp_path / "top")
    done = box.run("find", f":{tmp_path}/top", "--gitignore", "-0")
    names = (b".gitignore", b".hidden", ODD, b"one.py", b"sub", b"sub/two.txt")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.split(b"\0") == [top + b"/" + name for name in sorted(names)] + [b""]
    done = box.run("find", f"{tmp_path}/top", "*.py", "s*/*.{txt,o}", "--type", "f")
    assert done.stdout == top + b"/one.py\n" + top + b"/sub/two.txt\n"
    done = box.run("find", str(tmp_path / "top"), "odd*", "--json")
    (told,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert told["kind"] == "file"
    assert PathUri.parse(told["uri"]).native() == top + b"/" + ODD


def test_a_file_is_found_itself(box: Person, tmp_path: Path) -> None:
    path = f"{tmp_path}/top/one.py"
    for words in ([f":{path}"], [path, "--type", "f"]):
        assert box.run("find", *words).stdout.decode() == f"{path}\n"
    told = json.loads(box.run("find", path, "--json").stdout)
    assert told == {"path": path, "uri": f"file://{path}", "kind": "file"}
    assert box.run("find", path, "--type", "d").stdout == b""
    done = box.run("find", path, "*.py")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode() == (
        f"execserver: {path}: it is a file, and patterns are for what is below a folder\n"
    )


def test_lines_are_printed_as_grep_does(box: Person, tmp_path: Path) -> None:
    top = f"{tmp_path}/top"
    done = box.run("grep", "-n", "second", f":{top}", "--gitignore")
    expected = f"{top}/one.py:2:\tsecond \x1b[2J\n{top}/sub/two.txt:1:second\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, expected.encode(), b"")
    assert box.run("grep", "-i", "^second$", f"{top}/one.py").stdout == b"Second\n"
    done = box.run("grep", "-c", "-i", "second", top, "--glob", "*.py", "--json")
    assert [json.loads(line)["count"] for line in done.stdout.splitlines()] == [2]
    done = box.run("grep", "-l", "-F", "sec", top, f"{top}/.hidden", "-0")
    names = (f"{top}/built.o", f"{top}/one.py", f"{top}/sub/two.txt", f"{top}/.hidden", "")
    assert done.stdout.decode().split("\0") == [*names]


def test_the_status_says_whether_something_was_found(box: Person, tmp_path: Path) -> None:
    assert box.run("grep", "nowhere", f"{tmp_path}/top").returncode == 1
    done = box.run("grep", "second", f"{tmp_path}/none", f"{tmp_path}/top/sub")
    assert (done.returncode, done.stdout.endswith(b"two.txt:second\n")) == (2, True)
    assert b"/none: " in done.stderr


@pytest.mark.long
def test_what_cannot_be_searched_for_is_told(box: Person, tmp_path: Path) -> None:
    done = box.run("grep", "(", f"{tmp_path}/top")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"malformed pattern" in done.stderr
    done = box.run("find", f"{tmp_path}/none")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == f"execserver: {tmp_path}/none: No such file or directory (os error 2)\n".encode()


@pytest.mark.long
def test_what_the_box_cut_is_told(box: Person, tmp_path: Path) -> None:
    (tmp_path / "top" / "long").write_text("x" * 3000 + "\n" + "xy\n" * 1500)
    done = box.run("grep", "-c", "xy", f"{tmp_path}/top/long")
    assert (done.returncode, done.stdout) == (2, b"1000\n")
    assert b"long: only the first 1000 lines" in done.stderr
    done = box.run("grep", "xxx", f"{tmp_path}/top/long")
    assert (done.returncode, len(done.stdout)) == (0, 1025)
    assert b"1 lines are longer" in done.stderr


def test_a_terminal_is_given_no_commands(box: Person, tmp_path: Path) -> None:
    with box.at_terminal("grep", "second", f"{tmp_path}/top/one.py") as screen:
        assert screen.ended() == 0
        assert screen.text.rstrip(b"\r\n").endswith(b"second \\x1b[2J")
    with box.at_terminal("find", f"{tmp_path}/top", "odd*", cols=500) as screen:
        assert screen.ended() == 0
        assert screen.text == os.fsencode(tmp_path / "top") + b"/odd\\xff\\x0a\\x1b[31m\r\n"


def test_a_reader_that_is_gone_ends_it(box: Person, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = box.start("find", f"{tmp_path}/top", stdout=writing)
    os.close(writing)
    assert (process.communicate(timeout=30)[1], process.returncode) == (b"", 141)


@pytest.mark.parametrize("name", [b"/etc/passwd", b"/top/../etc", b"/topping", b"/top//x", b"/top/./x", b"/"])
def test_a_box_leads_nowhere_else(name: bytes) -> None:
    root = Root("here", PathUri.from_native(b"/top"))
    with pytest.raises(ProtocolViolation):
        root.name_of(PathUri("file://" + name.decode(), name))


def test_a_path_of_another_kind_of_host_is_refused() -> None:
    with pytest.raises(ProtocolViolation, match="another kind of host"):
        Root("here", PathUri.from_native(b"/top")).name_of(PathUri.parse("file://host/top/x"))


@pytest.mark.parametrize(("asked", "name"), [("/", b"/etc/x"), ("top/", b"top/etc/x"), (".", b"./etc/x")])
def test_names_begin_as_they_were_asked_for(asked: str, name: bytes) -> None:
    place = b"/" if asked == "/" else b"/some/where"
    path = PathUri.from_native(place.rstrip(b"/") + b"/etc/x")
    assert Root(asked, PathUri.from_native(place)).name_of(path) == name


def test_several_patterns_are_one() -> None:
    assert any_of([]) == "**/*"
    assert any_of(["*.py"]) == "**/*.py"
    assert any_of(["a,b", "x/{c,d}", "\\,"]) == "{**/a\\,b,x/{c,d},**/\\,}"


@pytest.mark.parametrize(
    "words", [["find"], ["grep", "x"], ["grep", "x", "a:b", "c:d"], ["find", "x", "--type", "l"], ["grep"]]
)
def test_wrong_usage_exits_with_2(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert mistaken(words, monkeypatch, capfd).startswith("error: ")


def test_a_full_disk_is_told_and_is_not_taken_for_no_match(box: Person, tmp_path: Path) -> None:
    (tmp_path / "top" / "long").write_text("second\n" * 900)
    for words, status in (
        (("find", str(tmp_path / "top")), 1),
        (("grep", "second", str(tmp_path / "top")), 2),
    ):
        with open("/dev/full", "wb") as full:
            searching = box.start(*words, stdout=full)
            errors = searching.communicate(timeout=30)[1]
        told = b"Error: the output cannot be written: No space left on device\n"
        assert (searching.returncode, errors) == (status, told)
