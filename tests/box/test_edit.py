"""`execserver edit`: never over what others have changed, and nothing typed is lost."""

from __future__ import annotations

import os
import re
import signal
import stat
from pathlib import Path

import pytest

from tests.box.boxes import WAIT_S, Person, mistaken
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

KEPT = re.compile(rb"your text is in (\S+)")


@pytest.fixture
def box(server: ServerProcess, person: Person, tmp_path: Path) -> Person:
    """A person whose default box is the server, with a folder of their own for drafts."""
    (tmp_path / "drafts").mkdir()
    person.environ |= {"EXECSERVER_BOX": server.url, "TMPDIR": str(tmp_path / "drafts")}
    return person


def editor(person: Person, script: str) -> None:
    """Have a script as the editor; its first operand is `$1`."""
    program = person.home / "my editor"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    person.environ["EDITOR"] = f"'{program}' -w"
    program.write_text(f"#!/bin/sh\nshift\n{script}\n")


def drafts(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "drafts").rglob("*") if path.is_file())


def test_what_the_editor_makes_of_a_file_is_written_back_with_its_mode(box: Person, tmp_path: Path) -> None:
    file = tmp_path / "one.py"
    file.write_bytes(b"a\r\n\xff\0")
    file.chmod(0o750)
    (tmp_path / "link.py").symlink_to("one.py")
    told = tmp_path / "told"
    editor(box, f'stat -c %a "$(dirname "$1")" "$1" >"{told}"; echo "$1" >>"{told}"; printf "\\001" >>"$1"')
    done = box.run("edit", f":{tmp_path}/link.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert file.read_bytes() == b"a\r\n\xff\0\1"
    assert stat.S_IMODE(file.stat().st_mode) == 0o750
    assert (tmp_path / "link.py").is_symlink()
    folder, draft, name = told.read_text().splitlines()
    assert (folder, draft, os.path.basename(name)) == ("700", "600", "link.py")
    assert drafts(tmp_path) == []


def test_several_files_are_edited_at_once_and_what_is_as_before_is_not_written(
    box: Person, tmp_path: Path
) -> None:
    paths = [
        tmp_path / "a" / "same.txt",
        tmp_path / "b" / "same.txt",
        tmp_path / "new.txt",
        tmp_path / "none",
    ]
    for path in paths[:2]:
        path.parent.mkdir()
        path.write_text("old")
    before = paths[1].stat()
    editor(box, 'echo first >"$1"; echo new >"$3"; test ! -e "$4"')
    done = box.run("edit", *(f":{path}" for path in paths))
    assert (done.returncode, done.stderr) == (0, b"")
    assert (paths[0].read_text(), paths[2].read_text()) == ("first\n", "new\n")
    assert paths[1].stat().st_ino == before.st_ino
    assert not paths[3].exists()


def test_a_file_that_changed_meanwhile_stays_and_the_text_is_kept(box: Person, tmp_path: Path) -> None:
    file, new = tmp_path / "one", tmp_path / "new"
    file.write_text("old")
    editor(box, f'echo theirs >"{file}"; echo theirs >"{new}"; echo mine >"$1"; echo mine >"$2"')
    done = box.run("edit", f":{file}", f":{new}")
    assert done.returncode == 1
    assert (file.read_text(), new.read_text()) == ("theirs\n", "theirs\n")
    assert b"has changed meanwhile" in done.stderr
    assert b"somebody else has made it meanwhile" in done.stderr
    kept = [Path(os.fsdecode(path)) for path in KEPT.findall(done.stderr)]
    assert [path.read_text() for path in kept] == ["mine\n", "mine\n"]
    assert f"execserver cp {kept[0]} :{file}".encode() in done.stderr


def test_an_editor_that_fails_writes_nothing(box: Person, tmp_path: Path) -> None:
    file = tmp_path / "one"
    file.write_text("old")
    editor(box, 'echo mine >"$1"; exit 3')
    done = box.run("edit", f":{file}")
    assert (done.returncode, file.read_text()) == (1, "old")
    assert b"ended with status 3: nothing is written" in done.stderr
    assert Path(os.fsdecode(KEPT.findall(done.stderr)[0])).read_text() == "mine\n"


@pytest.mark.long
def test_an_editor_that_cannot_be_started_leaves_nothing_behind(box: Person, tmp_path: Path) -> None:
    (tmp_path / "one").write_text("old")
    done = box.run("edit", f":{tmp_path}/one", EDITOR="/nonexistent/editor")
    assert done.returncode == 1
    assert b"/nonexistent/editor cannot be started" in done.stderr
    assert drafts(tmp_path) == []


def test_without_any_editor_nothing_is_fetched(person: Person, tmp_path: Path) -> None:
    person.environ["PATH"] = str(tmp_path)
    done = person.run("edit", ":x", EDITOR="", EXECSERVER_BOX="ws://127.0.0.1:1")
    assert done.returncode == 1
    assert b"there is no editor" in done.stderr
    assert b"EDITOR" in done.stderr


@pytest.mark.long
def test_what_cannot_be_edited_is_told_before_the_editor_starts(box: Person, tmp_path: Path) -> None:
    started = tmp_path / "started"
    editor(box, f'touch "{started}"')
    os.mkfifo(tmp_path / "fifo")
    for path, text in {
        str(tmp_path): b"is a folder",
        f"{tmp_path}/fifo": b"fifo",
        "/proc/self/status": b"no file that can be replaced",
        f"{tmp_path}/no ne/x": f"What to do: make it there: mkdir -p '{tmp_path}/no ne'".encode(),
        f"{tmp_path}/x/": b"name",
    }.items():
        done = box.run("edit", f":{path}")
        assert (done.returncode, done.stdout) == (1, b""), path
        assert text in done.stderr
    assert not started.exists()


def test_a_server_that_came_back_without_the_session_gets_the_text(person: Person, tmp_path: Path) -> None:
    file, ready, go = tmp_path / "one", tmp_path / "ready", tmp_path / "go"
    file.write_text("old")
    os.mkfifo(go)
    editor(person, f'touch "{ready}"; read line <"{go}"; echo mine >"$1"')
    person.environ["EXECSERVER_BOX"] = f"unix:{tmp_path}/socket"
    with ServerProcess(listen=f"unix://{tmp_path}/socket") as first:
        process = person.start("edit", f":{file}")
        wait_until(ready.exists, WAIT_S)
        first.signal(signal.SIGKILL)
        first.wait()
    with ServerProcess(listen=f"unix://{tmp_path}/socket"):
        go.write_text("\n")
        assert process.communicate(timeout=WAIT_S) == (b"", b"")
    assert (process.returncode, file.read_text()) == (0, "mine\n")


@pytest.mark.long
def test_a_box_that_is_gone_leaves_the_text_here(person: Person, tmp_path: Path) -> None:
    file = tmp_path / "one"
    file.write_text("old")
    with ServerProcess() as server:
        person.environ |= {"EXECSERVER_BOX": server.url}
        editor(person, f'kill -9 {server.pid}; echo mine >"$1"')
        done = person.run("edit", f":{file}")
        server.wait()
    assert (done.returncode, file.read_text()) == (255, "old")
    assert Path(os.fsdecode(KEPT.findall(done.stderr)[0])).read_text() == "mine\n"


@pytest.mark.parametrize("end", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.long)])
def test_a_signal_ends_the_editor_keeps_the_text_and_restores_the_terminal(
    box: Person, tmp_path: Path, end: signal.Signals
) -> None:
    file = tmp_path / "one"
    file.write_text("old")
    editor(box, 'echo mine >"$1"; stty raw; echo ready; exec sleep 1000')
    with box.at_terminal("edit", f":{file}") as screen:
        screen.wait_for(b"ready")
        assert screen.is_raw()
        os.kill(screen.pid, end)
        screen.wait_for(b"your text is in")
        assert not screen.is_raw()
        assert screen.ended() == 128 + end
    assert (file.read_text(), drafts(tmp_path)) == ("old", ["one"])


def test_an_interrupt_is_the_editors(box: Person, tmp_path: Path) -> None:
    file = tmp_path / "one"
    file.write_text("old")
    editor(box, "trap \"echo mine >'$1'; exit 0\" INT; echo ready; while :; do sleep 1; done")
    with box.at_terminal("edit", f":{file}") as screen:
        screen.wait_for(b"ready")
        screen.type(b"\x03")
        assert screen.ended() == 0
    assert file.read_text() == "mine\n"


@pytest.mark.parametrize("words", [[], ["x"], ["a:x", "b:y"], [":x", "y"], ["-", ":x"]])
def test_wrong_usage_exits_with_2(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert mistaken(["edit", *words], monkeypatch, capfd).startswith("error: ")
